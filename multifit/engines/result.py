"""What a stage computed from a batch, as handlers and users see it, in any library."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ..handlers.dispatcher import TrainingHooks
from ..spec import TaskSpec
from ..spec.parsing import is_missable, presence
from ..spec.terms import listed

Arrays = Mapping[str, Any]


class StepResult(ABC):
    """What a stage computed from a `batch`; a subclass holds the net's outputs, and what losses returned."""

    spec: TaskSpec
    batch: Any

    @abstractmethod
    def by_device(self) -> Sequence[tuple[Arrays, Arrays, Arrays]]:
        """Return each device's outputs, slots and minimised parts of losses, by name."""

    @abstractmethod
    def loss(self) -> float:
        """Return this rank's part of the objective; this waits for the device."""

    @abstractmethod
    def change_objective(self, hooks: TrainingHooks) -> bool:
        """Let handlers change the objectives; return whether each is still that of the same losses."""

    def named(self) -> dict[str, dict[str, list[Any]]]:
        """Return ``pred``, ``label`` and ``loss``: dicts of lists per device, however many there are."""
        names = self.spec.output_names, listed(self.spec.labels), [term.key for term in self.spec.terms]
        devices = self.by_device()
        return {
            what: {name: [arrays[at].get(name) for arrays in devices] for name in names[at]}
            for at, what in enumerate(("pred", "label", "loss"))
        }

    def views(self) -> dict[str, Any]:
        """Return ``pred``, ``label`` and ``loss``: lists per device, or dicts of lists; and ``present``."""
        views: dict[str, Any] = {
            what: next(iter(columns.values())) if len(columns) == 1 else columns
            for what, columns in self.named().items()
        }
        missable = [name for name, label in self.spec.label_specs.items() if is_missable(label)]
        devices = self.by_device() if missable else ()
        present = {name: [slots.get(presence(name)) for _, slots, _ in devices] for name in missable}
        return {**views, "present": present}
