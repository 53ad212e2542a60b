"""Nets as estimators of scikit-learn 1.6 or newer, for `GridSearchCV`, `cross_val_score`, `Pipeline` etc."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .array_batches import batches
from .engines import library_of
from .estimator import MultiEstimator
from .handlers import ProgressBar
from .handlers.checked_handlers import checked_handlers
from .spec import TrainerSpec
from .utils.arguments import known_arguments
from .utils.errors import SpecError
from .utils.seeding import preserve_rng, seed_everything
from .utils.text import quoted, shown

__all__ = ["MultiEstimatorClassifier", "MultiEstimatorRegressor"]

_PREFIXES = ("net__", "optimizer__", "estimator__")


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common."""

    def __init__(
        self,
        net: Callable[..., Any],
        spec: Any,
        optimizer: str = "adam",
        epochs: int = 10,
        batch_size: int = 32,
        random_state: Any = None,
        verbose: bool = False,
        **options: Any,
    ) -> None:
        valid = [*self._get_param_names(), *(f"{prefix}…" for prefix in _PREFIXES)]
        unknown = [name for name in options if not name.startswith(_PREFIXES)]
        known_arguments(type(self).__name__, unknown, valid)
        self.net, self.spec, self.optimizer = net, spec, optimizer
        self.epochs, self.batch_size = epochs, batch_size
        self.random_state, self.verbose = random_state, verbose
        self._options = options

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name."""
        return {**super().get_params(deep), **self._options}

    def set_params(self, **params: Any) -> Any:
        """Set arguments of the constructor."""
        options = {name: params.pop(name) for name in list(params) if name.startswith(_PREFIXES)}
        self._options = {**self._options, **options}
        return super().set_params(**params)

    def _make(self) -> MultiEstimator:
        """Return an estimator of a new net."""
        with suppress(SpecError):
            library_of(self.net)
            message = "one net, but each fit trains a new one: give its class, or a function that returns it"
            raise ValueError(f"net is {shown(self.net)}, {message}")
        given = self._options.items()
        of_net, of_optimizer, options = (
            {name.removeprefix(prefix): value for name, value in given if name.startswith(prefix)}
            for prefix in _PREFIXES
        )
        options.setdefault("trainers", TrainerSpec(".*", self.optimizer, of_optimizer))
        spec = deepcopy(self.spec)  # a loss that was used could not be cloned
        made = MultiEstimator(self.net(**of_net), spec, **options)
        names = made.spec.evaluation.output_names
        if len(names) != 1:
            raise ValueError(f"an estimator of scikit-learn has one output, and the spec has {quoted(names)}")
        return made

    def _fit(self, x: Any, y: Any, event_handlers: Any = None, **arguments: Any) -> Any:
        handlers = checked_handlers(event_handlers)
        if not self.verbose:
            handlers.append(ProgressBar(enabled=False))
        seed = check_random_state(self.random_state).randint(2**31)
        data = batches(x, y, batch_size=self.batch_size, shuffle=True)
        with self._logging(), preserve_rng():
            seed_everything(int(seed))
            self.estimator_ = self._make()
            given = {"epochs": self.epochs, "event_handlers": handlers, **arguments}
            self.history_ = self.estimator_.fit(data, **given)
        return self

    def _outputs(self, X: Any) -> Any:
        check_is_fitted(self)
        x = validate_data(self, X, reset=False, allow_nd=True)
        with self._logging():
            outputs = self.estimator_.predict(batches(x, batch_size=self.batch_size))
        return next(iter(outputs.values()))

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Log warnings only, unless the estimator is verbose."""
        logger = logging.getLogger("multifit")
        before = logger.level
        logger.setLevel(before if self.verbose else logging.WARNING)
        try:
            yield
        finally:
            logger.setLevel(before)


class MultiEstimatorClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier of scikit-learn that trains a net. Labels may be of any type.

    Parameters
    ----------
    net : class or callable
        Returns a new net. Options are passed to it as ``net__<name>``, such as ``net__hidden=16``. The net
        returns a score for each class, before the softmax, or one score, before the sigmoid, with
        ``SigmoidBinaryCrossEntropyLoss`` or PyTorch's ``BCEWithLogitsLoss``.
    spec : loss or TaskSpec
        What to train, with one input, output and label.
    optimizer : str
        The optimizer. Its options are ``optimizer__<name>``, such as ``optimizer__learning_rate=0.01``.
    epochs : int
        The number of epochs.
    batch_size : int
        The number of samples in a batch.
    random_state : int or numpy.random.RandomState, optional
        Seeds initial parameters, dropout and the order of the samples.
    verbose : bool
        Whether to log more than warnings, and show progress bars.
    **options
        These, and arguments of `MultiEstimator`, such as ``estimator__context`` or ``estimator__trainers``.

    Attributes
    ----------
    estimator_, history_ : MultiEstimator, History
        The trained estimator, and the figures of the training.
    classes_ : numpy.ndarray
        The classes, in order.
    """

    def fit(self, X: Any, y: Any, **arguments: Any) -> Any:
        """Train a new net on samples `X`, an array or a frame, with labels `y` of shape (N,).

        Other arguments are those of :meth:`MultiEstimator.fit`, such as `event_handlers`.
        """
        x, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        return self._fit(x, encoder.transform(y), **arguments)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, of shape (N, C)."""
        scores = self._outputs(X)
        if scores.size == len(scores):
            second = expit(scores.reshape(-1, 1))
            return np.hstack([1 - second, second])
        return softmax(scores[:, : len(self.classes_)], axis=1)

    def predict(self, X: Any) -> Any:
        """Return the most probable class of each sample, of shape (N,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]


class MultiEstimatorRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regressor of scikit-learn that trains a net; `y` may have as many columns as the net returns.

    Parameters and attributes are those of `MultiEstimatorClassifier`, without `classes_`.
    """

    def fit(self, X: Any, y: Any, **arguments: Any) -> Any:
        """Train a new net on samples `X`, an array or a frame, with values `y` of shape (N,) or (N, K).

        Other arguments are those of :meth:`MultiEstimator.fit`, such as `event_handlers`.
        """
        x, y = validate_data(self, X, y, allow_nd=True, multi_output=True, y_numeric=True)
        self._shape = y.shape[1:]
        return self._fit(x, y.reshape(len(y), -1), **arguments)

    def predict(self, X: Any) -> Any:
        """Return the values that the net predicts, of the shape of `y` in training."""
        return self._outputs(X).reshape(-1, *self._shape)
