"""What an engine trains: a model, its trainers, and stages with their figures, in any library."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ..distributed import World
from ..handlers.dispatcher import NO_HOOKS, TrainingHooks
from ..handlers.state import RunState
from ..sampling import LoaderCounts, TaskLoaders
from ..spec import TaskSpec
from ..spec.parsing import coverage
from ..spec.terms import TaskSlots, Term, with_optional
from ..utils.arguments import FromZero, checked_value
from ..utils.errors import SpecError
from ..utils.stages import STAGES, TRAIN
from .added_slots import BalancedWeights, KnownLabels
from .reader import Reader
from .splitter import Seen, Signatures, Splitter, TaskSplitter
from .windows import Windows

Self = TypeVar("Self", bound="Session")


class Session(ABC):
    """A model and its trainers, and what is rebuilt for every fit: stages and batch splitters.

    A subclass makes `shared` and then calls :meth:`restart`.

    `spec` says what is routed where, and loss weights that are functions are called with `state`. `metrics`
    are those of each stage. `balancer` weighs the losses of training, if there is one. `world` holds the
    ranks that train together.

    Attributes
    ----------
    shared
        Keeps the ranks' parameters equal.
    stages : dict
        What runs batches, by "train" and "evaluate".
    readers : dict of str to Reader
        They read the loaders of each stage.
    windows : Windows
        Read the batches that trainers accumulate.
    loaders : TaskLoaders or None
        Set, before :meth:`read_tasks`, if several loaders train.
    hooks : TrainingHooks
        They call the handlers that change a training step.
    batch_axis : int
        The axis of the samples in all slots.
    signatures : dict of str to list
        The shapes and dtypes of each stage's batches, for exporting.
    known_labels : dict of str to dict
        The shapes and dtypes of each stage's labels that may be missing, from the last batch that had them.
    balanced_weights : dict
        The weights of the classes that a fit has counted, by loss.
    """

    shared: Any
    batch_splitter: Callable[..., Splitter]
    value_weights: Callable[..., Any]

    def __init__(
        self,
        model: Any,
        trainers: Any,
        spec: TaskSpec,
        state: RunState,
        log_once: Any,
        metrics: Mapping[str, Sequence[Any]],
        balancer: Any,
        world: World,
    ) -> None:
        self.model, self.trainers, self.spec = model, trainers, spec
        self._log_once, self.world = log_once, world
        self.signatures: dict[str, Signatures] = {name: [] for name in STAGES}
        self.balanced_weights: BalancedWeights = {}
        self._begin(state, metrics, balancer)

    def _begin(self, state: RunState, metrics: Mapping[str, Sequence[Any]], balancer: Any) -> None:
        self.state, self._metrics, self.balancer, self.batch_axis = state, metrics, balancer, 0
        self.readers = {name: Reader(self.world) for name in STAGES}
        self.windows = Windows(self)

    def fork(self: Self, state: RunState) -> Self:
        """Return a session for the same model and trainers with metrics, figures and graphs of its own.

        Both sessions share what they learn about the shapes of batches.
        """
        fork = copy.copy(self)
        metrics = {name: [metric.fork() for metric in of_stage] for name, of_stage in self._metrics.items()}
        fork._begin(state, metrics, None if self.balancer is None else self.balancer.fork())
        fork.restart()
        return fork

    @abstractmethod
    def normalizer(self, term: Term, batch: Any) -> float:
        """Return this process's part of a loss's normalizer; may wait for the device."""

    @abstractmethod
    def backward(self, result: Any) -> None:
        """Add the gradients of the sum of a batch's objectives to those of the parameters."""

    @abstractmethod
    def again(self, batch: Any) -> Any:
        """Compute a batch's losses once more in training mode, without gradients; no statistics change."""

    @abstractmethod
    def discard(self) -> None:
        """Discard what depends on the net as it was: it may have changed."""

    @abstractmethod
    def new_stage(self, name: str, spec: TaskSpec, metrics: Sequence[Any], hooks: TrainingHooks) -> Any:
        """Return a new stage for a TaskSpec and with these metrics."""

    @abstractmethod
    def added(self) -> Any:
        """Return what knows, with `state` and `load`, how many batches were added up, or None."""

    @property
    def balance(self) -> Any:
        """The method of balancing, or None."""
        return None if self.balancer is None else self.balancer.method

    def refuse_apart(self, problem: str, of_tasks: str, of_trainers: str) -> None:
        """Raise SpecError if losses are balanced or bound to trainers, which something does not go with.

        The `problem` ends with `of_tasks` if losses are balanced, with `of_trainers` if they are bound.
        """
        if self.balancer is not None:
            raise SpecError(f"balance: {problem} {of_tasks}; leave the handler or balance= out")
        if any(term.trainers for term in self.spec.terms):
            raise SpecError(f"losses: {problem} {of_trainers}; leave the handler or trainers= out")

    def restart(self, hooks: TrainingHooks = NO_HOOKS, needs_outputs: bool = True) -> None:
        """Discard all graphs and figures, as at the beginning of a fit: the net may have changed.

        `hooks` call the handlers that change a training step. `needs_outputs` says whether somebody reads the
        outputs of training. Raises SpecError if the net no longer has the parameters that it had when the
        model was made.
        """
        self.model.check_parameters()
        self.discard()
        self.hooks, self._needs_outputs = hooks, needs_outputs
        self.loaders: TaskLoaders | None = None
        self.known_labels: dict[str, KnownLabels] = {name: {} for name in STAGES}
        self._tasks: dict[str, Mapping[str, TaskSlots]] = {name: {} for name in STAGES}
        self._joined = dict.fromkeys(STAGES, False)
        self._splitters: dict[Any, Any] = {}
        self.windows.begin()
        self.stages = {name: self._new_stage(name) for name in STAGES}

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for the batches of several loaders, or of one.

        `slots` are the slots of each loader's batches, empty if there is one loader. `joined` says whether
        the loaders' batches are joined into one. If `slots` or `joined` changed, the stage's graphs and
        figures are discarded.
        """
        if (slots, joined) == (self._tasks[name], self._joined[name]):
            return
        self._tasks[name], self._joined[name] = slots, joined
        self._splitters = {key: splitter for key, splitter in self._splitters.items() if key[0] != name}
        self.stages[name] = self._new_stage(name)

    # ---- stages

    def _new_stage(self, name: str) -> Any:
        training, metrics = name == TRAIN, self._metrics[name]
        lacking = self._lacking(name)
        spec = with_optional(self.spec if training else self.spec.evaluation, lacking)
        optional = {coverage(label): lacking & {label} for label in spec.labels}
        optional.update({term.key: term.optional for term in spec.metric_terms})
        for metric in metrics:
            metric.restart(optional[metric.term.key])
        stage = self.new_stage(name, spec, metrics, self.hooks if training else NO_HOOKS)
        if training:
            stage.needs_outputs = self._needs_outputs
            if self.loaders is not None:
                stage.figures.means.append(LoaderCounts(self.loaders))
        return stage

    def _lacking(self, name: str) -> frozenset[str]:
        """Return the slots that some of a stage's batches lack."""
        if self._joined[name]:
            return frozenset()
        spec = self.spec if name == TRAIN else self.spec.evaluation
        slots = [set(names.values()) for names in self._tasks[name].values()]
        return frozenset(slot for names in slots for slot in spec.slot_names if slot not in names)

    # ---- batch splitters

    @contextmanager
    def samples_along(self, batch_axis: int) -> Iterator[None]:
        """Split batches along another axis within the block; raises ValueError if it is not a valid axis."""
        before, self.batch_axis = self.batch_axis, checked_value("batch_axis", batch_axis, FromZero)
        try:
            yield
        finally:
            self.batch_axis = before

    def splitter(self, name: str, labels: bool = True, changes: bool = True) -> Any:
        """Return the batch splitter of a stage, made when it is first needed.

        With ``labels=False``, batches may lack labels; with ``changes=False``, handlers do not change them.
        """
        hooks = self.hooks if name == TRAIN and changes else NO_HOOKS
        key = (name, labels, hooks.active("change_batch"), self.batch_axis)
        if key not in self._splitters:
            tasks = self._tasks[name] if labels else {}
            make = partial(self._new_splitter, name, hooks, labels)
            per_loader = {task: make(slots) for task, slots in tasks.items()}
            self._splitters[key] = TaskSplitter(make(), per_loader) if tasks else make()
        return self._splitters[key]

    def _new_splitter(
        self, name: str, hooks: TrainingHooks, labels: bool, slots: TaskSlots | None = None
    ) -> Splitter:
        stage, axis, model = self.stages[name], self.batch_axis, self.model
        seen = Seen(known=self.known_labels[name], casts=stage.casts, current=self.readers[name].current)
        if axis == 0:
            seen.signatures = self.signatures[name]
            seen.before = [self.signatures[each] for each in STAGES if self.stages[each].spec is stage.spec]
        changes: list[Callable[[Any], object]] = []
        weights = self.value_weights(stage.spec, model.dtype, self.balanced_weights, self._log_once)
        if weights.terms:
            changes.append(weights.add)
        if hooks.active("change_batch"):
            change = partial(hooks.change_batch, batch_axis=axis)
            changes.append(lambda batch: batch.map_slots(change))
        if stage.carried is not None:
            changes.append(stage.carried.fill_in)
        return self.batch_splitter(
            stage.spec,
            model.contexts,
            model.dtype,
            self._log_once,
            seen,
            labels=labels,
            batch_axis=axis,
            slots=slots,
            changes=changes,
        )
