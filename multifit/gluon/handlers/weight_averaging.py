"""Average the parameters over the training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...arguments import finite_number, whole_number
from ...errors import names, suggest
from ...events import Priority
from ..compat import mx

__all__ = ["WeightAveraging"]

KINDS = ("ema", "swa")


class WeightAveraging:
    r"""Keeps averages of the parameters, which are evaluated, and kept in the end, in their place.

    With "ema", after each update (each `every`-th), :math:`a \leftarrow a + (1 - \mathrm{decay}) (w - a)`,
    beginning with the first parameters averaged. With "swa", at the end of each epoch (each `every`-th), the
    equal mean of the parameters so far.

    The training itself is not changed. While a fit evaluates, the net holds the averages; so a monitored
    ``val_…`` figure is theirs. Running statistics of BatchNorm are averaged too with "ema"; with "swa" they
    stay those of the training, so the net had better pass over some data in training mode in the end.
    Averages are of the first device, and all devices get them. Each fit begins anew. Beside
    ``EarlyStoppingHandler(restore_best=True)``, whose parameters would be kept in the end, say apply=False.

    Parameters
    ----------
    kind : {"ema", "swa"}
        Exponential moving average, or stochastic weight averaging.
    decay : float
        For "ema": how much an average keeps at each update, from 0 to below 1.
    start : int
        Number of epochs of the fit that pass before averaging begins.
    every : int
        Average after each so many updates ("ema") or epochs ("swa").
    apply : bool
        Whether the net has the averages when the fit is over.

    Raises
    ------
    ValueError
        An argument is not valid.

    References
    ----------
    P. Izmailov, D. Podoprikhin, T. Garipov, D. Vetrov, A. G. Wilson: Averaging Weights Leads to Wider Optima
    and Better Generalization. UAI 2018, arXiv:1803.05407.
    """

    priority = Priority.VALIDATION - 50  # what is evaluated has the update or epoch that has just ended in it

    def __init__(
        self, kind: str = "ema", decay: float = 0.999, start: int = 0, every: int = 1, apply: bool = True
    ) -> None:
        if kind not in KINDS:
            near = suggest(kind, KINDS)
            raise ValueError(f'WeightAveraging: kind is "{kind}"{near}; valid are {names(KINDS)}')
        self.kind, self.apply = kind, apply
        self.decay = finite_number("WeightAveraging: decay", decay, least=0, below=1)
        self.start = whole_number("WeightAveraging: start", start, least=0)
        self.every = whole_number("WeightAveraging: every", every)
        self._epochs = self._due = self._count = 0
        self.averages: dict[str, Any] = {}

    def train_begin(self, estimator: Any, **facts: Any) -> None:
        """Begin anew."""
        self._epochs = self._due = self._count = 0
        self.averages = {}

    def batch_end(self, estimator: Any, **_: Any) -> None:
        """Average after an update."""
        # after an update no gradient waits for one; after a batch that was held back, they do
        if self.kind == "ema" and not any(estimator.gradients().values()):
            self._average_if_due(estimator)

    def epoch_end(self, estimator: Any, **facts: Any) -> None:
        """Average after an epoch, and count it."""
        if self.kind == "swa":
            self._average_if_due(estimator)
        self._epochs += 1

    @contextmanager
    def around_evaluation(self, estimator: Any) -> Iterator[None]:
        """Let the net hold the averages meanwhile."""
        held = [array for array, _ in self._pairs(estimator)]
        copies = [array.copy() for array in held]
        self._put(estimator)
        try:
            yield
        finally:
            for array, value in zip(held, copies):
                value.copyto(array)

    def train_end(self, estimator: Any, **facts: Any) -> None:
        """Leave the averages in the net."""
        if self.apply:
            self._put(estimator)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the counts."""
        return {
            "epochs": self._epochs,
            "due": self._due,
            "count": self._count,
            "averages": dict(self.averages),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self._epochs, self._due, self._count = state["epochs"], state["due"], state["count"]
        self.averages = {name: value.copy() for name, value in state["averages"].items()}

    def _average_if_due(self, estimator: Any) -> None:
        if self._epochs < self.start:
            return
        self._due += 1
        if (self._due - 1) % self.every:
            return
        self._count += 1
        rate = 1.0 - self.decay if self.kind == "ema" else 1.0 / self._count
        own = {name: p.list_data()[0] for name, p in estimator.parameters.items() if self._moves(p)}
        for name, value in own.items():
            if name in self.averages:
                _approach(self.averages[name], value, rate)
            else:
                self.averages[name] = value.copy()

    def _moves(self, parameter: Any) -> bool:
        """Whether a parameter is averaged: trainers move it or, with "ema", the forward pass does."""
        if parameter._data is None:  # no batch has reached it
            return False
        return parameter.grad_req != "null" or (self.kind == "ema" and not parameter._differentiable)

    def _pairs(self, estimator: Any) -> list[tuple[Any, Any]]:
        """Return each array of the net, on all devices, with its average."""
        own = {name: estimator.parameters[name].list_data() for name in self.averages}
        return [(array, self.averages[name]) for name, arrays in own.items() for array in arrays]

    def _put(self, estimator: Any) -> None:
        for array, average in self._pairs(estimator):
            average.copyto(array)


def _approach(average: Any, value: Any, rate: float) -> None:
    """Move an average by `rate` of its distance to the value.

    MXNet's step of gradient descent computes just that, a - rate (a - w), in one pass: the value is taken as
    the gradient, and the average as its own decay. What does not move is its own average exactly, which does
    not hold of ``sgd_update``; and many arrays at once take longer than one by one.
    """
    mx.nd.multi_sgd_update(
        average, value, lrs=(rate,), wds=(1.0,), rescale_grad=-1.0, num_weights=1, out=[average]
    )
