"""The batch splitters of an engine's stages, made when they are first needed."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Union

from ...events import TrainingHooks
from ...spec import TaskSpec
from ...spec.task_slots import TaskSlots
from ...stages import STAGES
from ..data.batch_splitter import BatchSplitter, SlotSignature
from ..data.missing_labels import KnownLabels
from ..data.task_splitter import TaskSplitter
from ..distributed.reader import Reader
from ..execution.stage import Stage
from ..model.model import Model

AnySplitter = Union[BatchSplitter, TaskSplitter]


class Splitters:
    """Makes the batch splitters, which turn the loaders' batches into named arrays on the model's devices.

    `readers` say which part of a batch belongs to this process. `signatures` are the shapes and dtypes of
    each stage's batches, for exporting. `known_labels` are the shapes and dtypes of the labels that may be
    missing, from the last batch that had them.
    """

    def __init__(self, model: Model, readers: Mapping[str, Reader], log_once: Callable[[str], None]) -> None:
        self._model, self._readers, self._log_once = model, readers, log_once
        self.signatures: dict[str, list[SlotSignature]] = {name: [] for name in STAGES}
        self._specs: dict[str, TaskSpec] = {}
        self.restart()

    def restart(self) -> None:
        """Discard all splitters, as at the beginning of a fit."""
        self.known_labels: dict[str, KnownLabels] = {name: {} for name in STAGES}
        self._tasks: dict[str, Mapping[str, TaskSlots]] = {name: {} for name in STAGES}
        self._joined = dict.fromkeys(STAGES, False)
        self._made: dict[Any, AnySplitter] = {}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool) -> bool:
        """Prepare for the batches of several loaders of a stage; return whether slots or `joined` changed."""
        if (slots, joined) == (self._tasks[name], self._joined[name]):
            return False
        self._tasks[name], self._joined[name] = slots, joined
        self._made = {key: splitter for key, splitter in self._made.items() if key[0] != name}
        return True

    def lacking(self, name: str, spec: TaskSpec) -> frozenset[str]:
        """Return the slots that some of a stage's batches lack."""
        if self._joined[name]:
            return frozenset()
        slots = [set(names.values()) for names in self._tasks[name].values()]
        return frozenset(slot for names in slots for slot in spec.slot_names if slot not in names)

    def get(self, stage: Stage, hooks: TrainingHooks, labels: bool, batch_axis: int) -> AnySplitter:
        """Return the splitter of a stage; without `labels`, batches may lack their labels.

        `hooks` call the handlers that change batches.
        """
        name = stage.network.stage
        key = (name, labels, hooks.active("change_batch"), batch_axis)
        if key not in self._made:
            make = partial(self._make, stage, hooks, labels, batch_axis)
            tasks = self._tasks[name] if labels else {}
            self._made[key] = TaskSplitter(stage.spec, tasks, make) if tasks else make()
        return self._made[key]

    def _make(
        self,
        stage: Stage,
        hooks: TrainingHooks,
        labels: bool,
        batch_axis: int,
        own: TaskSlots | None = None,
    ) -> BatchSplitter:
        name = stage.network.stage
        changes = hooks.active("change_batch")
        self._specs[name] = stage.spec
        same = [each for each, spec in self._specs.items() if spec is stage.spec]
        return BatchSplitter(
            stage.spec,
            self._model.contexts,
            self._log_once,
            labels=labels,
            batch_axis=batch_axis,
            change=partial(hooks.change_batch, batch_axis=batch_axis) if changes else None,
            signatures=self.signatures[name] if batch_axis == 0 else None,
            real=self._model.dtype,
            current=self._readers[name].current,
            own=own,
            fill_in=None if stage.carried is None else stage.carried.fill_in,
            known=self.known_labels[name],
            casts=stage.casts,
            before=[self.signatures[each] for each in same] if batch_axis == 0 else (),
        )
