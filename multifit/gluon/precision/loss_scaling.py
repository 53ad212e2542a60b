"""Dynamic loss scaling: gradients that would vanish in float16 are computed of a larger objective.

The algorithm is that of Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2, with the
numbers of MXNet's ``amp.LossScaler``: an objective is multiplied by a scale, and its gradients are divided by
it again. Where they are not finite the update is left out, and the scale halves; after so many updates in a
row it doubles. Scales are powers of two, so that float32 loses nothing by them.

Several trainers share one backward pass, which can carry one factor only. So each trainer has a scale that
it bears, by its own gradients and counters, and a batch takes the smallest of them. A trainer whose gradients
are not finite leaves out its own update; the others move. One that bears more than the others is offered it
as soon as they do: what it was never tried at is found out then, at the cost of one update.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Mapping

from ..compat import mx

__all__ = ["LossScaling", "NoScaling", "TrainerScale"]

CHUNK = 200  # mxnet looks at no more arrays at once
LEAST = 1.0  # what is not finite at this scale is not for the range of float16

Gradients = Mapping[str, Mapping[str, Any]]  # by trainer and parameter, one per device


@dataclass
class TrainerScale:
    """The scale that a trainer's gradients bear.

    Attributes
    ----------
    scale : float
        A power of two.
    unskipped : int
        Updates since it last changed.
    skipped : int
        Updates that were left out, in all.
    """

    scale: float
    unskipped: int = 0
    skipped: int = 0

    def learn(self, finite: bool, used: float, window: int, largest: float) -> None:
        """Take note of how an update went whose objective was multiplied by `used`."""
        if not finite:
            self.scale, self.unskipped, self.skipped = max(used / 2, LEAST), 0, self.skipped + 1
            return
        self.unskipped += 1
        if self.unskipped >= window:
            self.scale, self.unskipped = min(self.scale * 2, largest), 0


class NoScaling:
    """What needs no scaling: float32, and bfloat16, which has float32's range."""

    def backward(self, objectives: list[Any]) -> None:
        """Compute the gradients of all objectives."""
        mx.autograd.backward(objectives)

    def settle(
        self, trainers: Any, gradients: Callable[[], Gradients], notice: Callable[[str], None]
    ) -> None:
        """Do nothing: the gradients are what they are."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set nothing."""


class LossScaling:
    """Scales the objectives, and takes the scale out of the gradients before anybody sees them.

    Parameters
    ----------
    start : float
        The scale to begin with.
    window : int
        The number of updates in a row after which a scale doubles.
    largest : float
        Beyond this no scale grows.
    """

    def __init__(self, start: float = 2.0**16, window: int = 2000, largest: float = 2.0**24) -> None:
        self.start, self.window, self.largest = start, window, largest
        self.trainers: dict[str, TrainerScale] = {}

    @property
    def scale(self) -> float:
        """What the next objective is multiplied by: the most that all trainers bear."""
        return min((own.scale for own in self.trainers.values()), default=self.start)

    def backward(self, objectives: list[Any]) -> None:
        """Compute the gradients of all objectives, each times the scale."""
        heads = [mx.nd.full(o.shape, self.scale, ctx=o.context, dtype=o.dtype) for o in objectives]
        mx.autograd.backward(objectives, heads)

    def settle(
        self, trainers: Any, gradients: Callable[[], Gradients], notice: Callable[[str], None]
    ) -> None:
        """Divide the gradients by the scale, and take back those of a trainer that has some not finite.

        What is taken back moves nothing. This waits for the gradients: whether an optimizer counts a step is
        decided outside of the engine.

        Parameters
        ----------
        trainers : Trainers
            Reduced, neither clipped nor updated.
        gradients : callable
            Returns the fresh gradients.
        notice : callable
            Told where a trainer's gradients are not finite at any scale.

        Raises
        ------
        TrainerError
            A trainer updates on its kvstore, where its gradients cannot be divided.
        """
        trainers.check_open("where scaled gradients cannot be divided again")
        used, found = self.scale, gradients()
        flags = {name: _all_finite([g[0] for g in own.values()]) for name, own in found.items() if own}
        for gradient in (g for own in found.values() for per_device in own.values() for g in per_device):
            gradient *= 1.0 / used
        finite = _read(flags)
        for name, good in finite.items():
            own = self.trainers.setdefault(name, TrainerScale(self.start))
            own.learn(good, used, self.window, self.largest)
            if not good:
                _take_back(trainers[name], found[name])
                if used <= LEAST:
                    notice(f'the gradients of the trainer "{name}" are not finite at any loss scale')

    def state_dict(self) -> dict[str, Any]:
        """Return every trainer's scale and counters."""
        return {name: asdict(own) for name, own in self.trainers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what :meth:`state_dict` returned."""
        self.trainers = {name: TrainerScale(**own) for name, own in state.items()}


def _all_finite(gradients: list[Any]) -> Any:
    # of a sparse gradient the rows that are there
    values = [gradient if gradient.stype == "default" else gradient.data for gradient in gradients]
    flag = mx.nd.ones((1,), ctx=values[0].context)
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        mx.nd.multi_all_finite(*chunk, num_arrays=len(chunk), init_output=False, out=flag)
    return flag


def _read(flags: Mapping[str, Any]) -> dict[str, bool]:
    """Return all flags, in one wait for the engine."""
    if not flags:
        return {}
    first = next(iter(flags.values())).context
    values = mx.nd.concat(*(flag.as_in_context(first) for flag in flags.values()), dim=0).asnumpy()
    return {name: bool(value) for name, value in zip(flags, values)}


def _take_back(trainer: Any, held: Mapping[str, Any]) -> None:
    """Mark a trainer's gradients as used: an update leaves alone what no batch has reached."""
    for parameter in trainer._params:
        if parameter.grad_req != "null":
            for data in parameter.list_data():
                data._fresh_grad = False
