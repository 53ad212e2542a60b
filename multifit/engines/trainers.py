"""The trainers of a net, and the phases of their step after a backward pass, in any library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

from ..distributed import World
from ..spec.checks.trainers import accumulating_problems
from ..utils.errors import Problem, raise_problems
from ..utils.text import quoted, suggest
from .rhythm import AddedBatches, Rhythm, declared_rhythm

Learning = Callable[[str], Iterable[Any]]
"""Returns the parameters that a trainer updates now."""


class OwnGradients:
    """The gradients of a run of one process: there is nothing to agree on, and nothing to add up."""

    def agree(self, reasons: Sequence[bool], due: Iterable[str], learning: Learning) -> Sequence[bool]:
        """Return which reasons to hold an update back any rank has; ranks also agree on what was reached.

        The update is that of the trainers that are due; ``learning(name)`` returns their parameters. If only
        other ranks' samples have reached one, it gets a gradient of 0.
        """
        return reasons

    def add_up(self) -> None:
        """Replace the gradients of all parameters that a rank has reached by their sums over the ranks."""


class JointGradients(OwnGradients, ABC):
    """The gradients of several ranks: they are added up in one order on all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reached: list[Any] = []  # by any rank

    def agree(self, reasons: Sequence[bool], due: Iterable[str], learning: Learning) -> Sequence[bool]:
        """Return which reasons to hold an update back any rank has; see :class:`OwnGradients`."""
        every = [parameter for name in due for parameter in learning(name)]
        own = [self.is_reached(each) for each in every]
        of_any: list[bool] = (self._world.sum([*own, *reasons]) > 0).tolist()
        self._reached = list(compress(every, of_any))
        for parameter in compress(self._reached, [not each for each in compress(own, of_any)]):
            self.reach(parameter)
        return of_any[len(every) :]

    def add_up(self) -> None:
        """Replace the gradients that :meth:`agree` has found by their sums over the ranks."""
        self.sum(self._reached)

    @abstractmethod
    def is_reached(self, parameter: Any) -> bool:
        """Whether samples of this rank have reached a parameter."""

    @abstractmethod
    def reach(self, parameter: Any) -> None:
        """Give a parameter a gradient of 0."""

    @abstractmethod
    def sum(self, parameters: Sequence[Any]) -> None:
        """Replace the gradients of parameters by their sums over the ranks."""


class Trainers(Mapping[str, Any], ABC):
    """The trainers by name. They are built when first needed, as parameters may have no values before.

    The gradients of all trainers are ready before the first one updates its parameters, so that a failure
    does not leave half a step. A parameter that no sample has reached stays as it is.

    `declared` and `accumulate` are the `trainers` and `accumulate` of :class:`multifit.MultiEstimator`.
    `gradients` add up those of all ranks.

    `handles` are the trainers once they are built, `rhythms` those of trainers that do not update after every
    batch, and `clip_norms` the largest global gradient norms of trainers that clip. `waiting` names the
    trainers that do not update after the last batch. `added_gradients` counts what trainers have accumulated.
    `window` is the number of batches after which all of these have updated: 1 if none accumulates.
    """

    scale: float = 1.0  # by what gradients are multiplied while they are computed

    def __init__(self, declared: Any, accumulate: int, gradients: OwnGradients) -> None:
        named = declared.values() if isinstance(declared, Mapping) else [declared]
        self.window = math.lcm(*(declared_rhythm(each, accumulate).window for each in named))
        self._accumulate, self._gradients = accumulate, gradients
        self.handles: dict[str, Any] = {}
        self.rhythms: dict[str, Rhythm] = {}
        self.clip_norms: dict[str, float] = {}
        self.waiting = frozenset[str]()
        self.added_gradients = AddedBatches(())
        self._requests: Any = None  # what was asked of each parameter when the trainers were checked

    def __getitem__(self, name: str) -> Any:
        handles = self.get().handles
        if name not in handles:
            near = suggest(name, handles)
            raise KeyError(f"no trainer {quoted([name])}{near}; there are {quoted(handles)}")
        return handles[name]

    def __repr__(self) -> str:
        return f"Trainers({', '.join(self.handles)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self.get().handles)

    def __len__(self) -> int:
        return len(self.get().handles)

    def get(self, *name: Any) -> Any:
        """Return this, built; raises TrainerError if that cannot be done. With a name, as any mapping."""
        raise_problems([] if self.handles else self.build())
        return super().get(*name) if name else self

    # ---- building and checking

    def build(self) -> list[Problem]:
        """Build the trainers, unless that is done; return the problems.

        If other parameters learn now than when they were checked, that each of them has one trainer is
        checked again.
        """
        if self.handles and self._requests == self.requests():
            return []
        problems = self._build()
        if not problems:
            self._requests = self.requests()
        return problems

    def check_frozen(self) -> None:
        """Check the trainers again if handlers have frozen or unfrozen parameters since the last batch."""
        if self._requests != self.requests():
            raise_problems(self.build() or self.unreached())

    @abstractmethod
    def requests(self) -> Any:
        """Return what is asked of each parameter, which differs if another one learns."""

    @abstractmethod
    def _build(self) -> list[Problem]:
        """Build the trainers, or check again those that were built; return the problems."""

    @abstractmethod
    def updated(self, trainer: str | None = None) -> dict[str, Any]:
        """Return the parameters that a trainer, or any, updates now, by name."""

    @abstractmethod
    def unreached(self) -> list[Problem]:
        """Return parameters whose shape is still unknown after a forward pass, as a problem."""

    def check_none_accumulates(self) -> None:
        """Raise TrainerError if trainers add up gradients, which they do only in a fit.

        Other problems with trainers are raised with the first batch.
        """
        raise_problems(accumulating_problems({} if self._are_wrong() else self.rhythms))

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures: ``lr``, or ``lr_<trainer>`` of several; {} if there are problems.

        Handlers call this before the first batch, with which all problems are raised at once.
        """
        handles = {} if self._are_wrong() else self.handles
        rates = {f"lr_{n}" if len(handles) > 1 else "lr": each.learning_rate for n, each in handles.items()}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _are_wrong(self) -> bool:
        """Build the trainers, unless that is done; return whether they could not be built."""
        return not self.handles and bool(self.build())

    def window_of(self, name: str) -> int:
        """Return the number of batches whose gradients a trainer adds up to an update."""
        rhythm = self.get().rhythms.get(name)
        return 1 if rhythm is None else int(rhythm.window)

    # ---- a step

    def make_room(self, samples: int) -> None:
        """Before the backward pass of a batch: scale the gradients that wait to its number of samples."""
        for name, factor in self.added_gradients.factors(samples).items() if self.rhythms else ():
            self._multiply(name, factor)

    def due(self, step: int, samples: int, ends: bool) -> list[str]:
        """Return the trainers that update after batch number `step` of the run, counted from 0.

        The batch has that many `samples` on all ranks; `ends` says whether it is the last one of an epoch
        that leaves the trainers' windows incomplete. The gradients of other trainers are discarded, unless
        they accumulate.
        """
        if not self.rhythms:
            return list(self.handles)
        self.added_gradients.count(samples)
        waiting = set()
        for name, rhythm in self.rhythms.items():
            if rhythm.accumulate:
                if not ends and self.added_gradients.batches(name) < rhythm.every:
                    waiting.add(name)
            elif rhythm.waits(step):
                waiting.add(name)
                self._discard(name)
        self.waiting = frozenset(waiting)
        return [name for name in self.handles if name not in waiting]

    @property
    def left(self) -> bool:
        """Whether gradients that were added up wait for further batches."""
        return bool(self.added_gradients.waiting())

    def left_due(self) -> list[str]:
        """Return the trainers whose gradients wait for batches that an epoch does not have any more."""
        left = self.added_gradients.waiting()
        self.waiting = frozenset(self.handles) - frozenset(left)
        return left

    def agree(self, holds: bool, due: Collection[str]) -> bool:
        """Return whether the update does not happen; all ranks call it after each :meth:`due`.

        `holds` says whether a handler of this rank holds it back.
        """
        return self._gradients.agree([holds], due, self.learning)[0]

    def discard_held(self, due: Collection[str]) -> None:
        """Discard all gradients, as the update was held back; the trainers that are due begin anew.

        A later batch that does not reach a parameter would else update it by these.
        """
        waiting = self.added_gradients.waiting()
        for name in self.handles:
            self._discard(name, keeps_own_sums=name not in waiting)
        self.added_gradients.forget(due)

    def reduce(self, name: str) -> None:
        """Add up a trainer's gradients over the devices.

        Those that were accumulated are first divided by the samples of all their batches.
        """
        if name in self.rhythms and (share := self.added_gradients.share(name)) != 1:
            self._multiply(name, share)

    def add_up(self) -> None:
        """Replace the gradients, which are reduced, by their sums over the ranks, as :meth:`agree` said."""
        self._gradients.add_up()

    def update(self, name: str) -> None:
        """Update a trainer's parameters, by gradients that are reduced and clipped."""
        self._update(name)
        if name in self.rhythms:
            self.added_gradients.forget([name], others=False)

    @abstractmethod
    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm, without a wait; it must have one."""

    @abstractmethod
    def learning(self, name: str) -> Iterable[Any]:
        """Return the parameters that a trainer updates now."""

    @abstractmethod
    def _multiply(self, name: str, factor: float) -> None:
        """Multiply the gradients that a trainer's parameters have."""

    @abstractmethod
    def _discard(self, name: str, keeps_own_sums: bool = False) -> None:
        """Discard a trainer's gradients, perhaps not those that the user adds up."""

    @abstractmethod
    def _update(self, name: str) -> None:
        """Update a trainer's parameters that have a gradient, and discard it."""
