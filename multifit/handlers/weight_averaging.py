"""Average the parameters during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Annotated, Any

from ..utils.arguments import Count, FromZero, Share, checked, one_of
from ..utils.protocols import MultiEstimator
from .handler import Handler, Priority


class WeightAveraging(Handler):
    r"""Averages the parameters. Evaluations use the averages, and so does the net after the fit.

    With "ema", the average is updated after every n-th update, as
    :math:`a \leftarrow a + (1 - \mathrm{decay}) (w - a)`; it starts with the first parameters averaged. With
    "swa", it is the mean of the parameters at the end of every n-th epoch.

    Training itself does not change. While a fit evaluates, the net has the averages, so that monitored
    ``val_…`` figures are those of the averages. With "ema", the running statistics of BatchNorm are averaged
    too. With "swa", they stay those of the training: at the end, run the net over some data in training mode.
    The first device's parameters are averaged, and all devices get the averages. Each fit starts from
    scratch. ``net.params`` in a checkpoint holds the averages, as they were evaluated; a run that is resumed
    continues from the parameters that were trained. ``EarlyStoppingHandler(restore_best=True)`` restores the
    averages of the best epoch.

    Parameters
    ----------
    kind : {"ema", "swa"}
        Exponential moving average, or stochastic weight averaging.
    decay : float
        For "ema", the share of the old average at each update, at least 0 and below 1.
    start : int
        Number of epochs of the fit before averaging begins.
    every : int
        Average after every n-th update ("ema") or epoch ("swa").
    apply : bool
        Whether the net gets the averages when the fit is over.

    Raises
    ------
    ValueError
        An argument is not valid.

    References
    ----------
    P. Izmailov, D. Podoprikhin, T. Garipov, D. Vetrov, A. G. Wilson: Averaging Weights Leads to Wider Optima
    and Better Generalization. UAI 2018, arXiv:1803.05407.
    """

    priority = (Priority.METRICS + Priority.VALIDATION) / 2  # averages before the validation

    @checked
    def __init__(
        self,
        kind: Annotated[str, one_of("ema", "swa")] = "ema",
        decay: Share = 0.999,
        start: FromZero = 0,
        every: Count = 1,
        apply: bool = True,
    ) -> None:
        self.kind, self.decay, self.start, self.every, self.apply = kind, decay, start, every, apply
        self._epochs = self._elapsed = self._count = 0
        self.evaluated_parameters: dict[str, Any] = {}

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Forget an earlier fit."""
        self._epochs = self._elapsed = self._count = 0
        self.evaluated_parameters = {}

    def batch_end(self, estimator: MultiEstimator, **_: Any) -> None:
        """Average after an update."""
        if self.kind != "ema":
            return
        # If the update was held back, there are fresh gradients; if all trainers wait, the dict is empty.
        gradients = estimator.gradients()
        if gradients and not any(gradients.values()):
            self._average_if_due(estimator)

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Average after an epoch."""
        if self.kind == "swa":
            self._average_if_due(estimator)
        self._epochs += 1

    @contextmanager
    def around_evaluation(self, estimator: MultiEstimator) -> Iterator[None]:
        """Let the net have the averages during an evaluation."""
        functions = estimator.arrays
        arrays = [array for array, _ in self._pairs(estimator)]
        copies = [functions.copy(array) for array in arrays]
        self._copy_to_net(estimator)
        try:
            yield
        finally:
            for array, copy in zip(arrays, copies):
                functions.assign(array, copy)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Copy the averages to the net, unless `apply` is False; warn if there are none."""
        if not self.evaluated_parameters:
            estimator.logger.warning(
                "WeightAveraging averaged nothing: the fit had %d epochs, averaging begins after start=%d",
                self._epochs,
                self.start,
            )
        if self.apply:
            self._copy_to_net(estimator)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the counters."""
        return {
            "epochs": self._epochs,
            "due": self._elapsed,
            "count": self._count,
            "averages": dict(self.evaluated_parameters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._epochs, self._elapsed, self._count = state["epochs"], state["due"], state["count"]
        self.evaluated_parameters = deepcopy(dict(state["averages"]))

    def _average_if_due(self, estimator: MultiEstimator) -> None:
        if self._epochs < self.start:
            return
        self._elapsed += 1
        if (self._elapsed - 1) % self.every:
            return
        self._count += 1
        rate = 1.0 - self.decay if self.kind == "ema" else 1.0 / self._count
        functions, averages = estimator.arrays, self.evaluated_parameters
        updated = {*averages, *functions.held("trained")}  # those that were so far, too
        if self.kind == "ema":  # also those that the forward pass updates
            updated.update(functions.held("statistics"))
        for name, (value, *_) in functions.held().items():
            if name in averages:
                averages[name] = functions.approach(averages[name], value, rate)
            elif name in updated:
                averages[name] = functions.copy(value)

    def _pairs(self, estimator: MultiEstimator) -> list[tuple[Any, Any]]:
        """Return the arrays of the averaged parameters, on all devices, with their averages."""
        return [
            (array, self.evaluated_parameters[name])
            for name, arrays in estimator.arrays.held().items()
            if name in self.evaluated_parameters
            for array in arrays
        ]

    def _copy_to_net(self, estimator: MultiEstimator) -> None:
        for array, average in self._pairs(estimator):
            estimator.arrays.assign(array, average)
