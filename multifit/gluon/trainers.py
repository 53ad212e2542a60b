"""The trainers of a model: built when first needed, because parameters must be initialised before.

Also the losses that are bound to trainers: the parameters that they train.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import engines
from ..distributed import ALONE, World
from ..engines.trainers import OwnGradients
from ..spec.checks.trainers import frozen_problems, listing, unreached_problems
from ..spec.terms import Term
from ..utils.errors import Problem, raise_problems
from ..utils.protocols import Array
from .model import Model
from .optim.binding import DEFAULT, Bound, bind_trainers, frozen_names
from .optim.gradients import (
    AddedGradients,
    FreshGradients,
    clip_gradients,
    discard_gradients,
    is_fresh,
    replicas,
    scale_gradients,
    start_kvstore,
    updated_parameters,
    zero_stale,
)
from .optim.handle import TrainerHandle
from .optim.parameters import learnable, trainable
from .optim.updates import FusedUpdate
from .step.blocks import Frozen
from .user_code import user_code


class Trainers(engines.Trainers):
    """The trainers of a model, which know the parameters that they update.

    They are built once, because they have states. Which of their parameters they update can change at any
    time, with the parameters' ``grad_req``.

    `declared`, `frozen` and `accumulate` are the `trainers`, `frozen` and `accumulate` of
    :class:`multifit.MultiEstimator`; the attribute `frozen` says what is frozen now. `parameters` and
    `options` are as for :class:`Bound`. A gradient that a batch has written stays fresh until a trainer uses
    it; only fresh gradients count.
    """

    added_gradients: AddedGradients

    def __init__(
        self,
        declared: Any,
        frozen: Any,
        model: Model,
        log_once: Callable[[str], None],
        accumulate: int = 1,
        world: World = ALONE,
    ) -> None:
        super().__init__(declared, accumulate, OwnGradients() if world.alone else FreshGradients(world))
        self._take(Bound({}, {}, {}, {}, {}))
        self._declared, self._frozen, self._model, self._log_once = declared, frozen, model, log_once
        names, _ = frozen_names("frozen", frozen, model.parameters)
        self.frozen = Frozen(model.net, model.parameters, names)
        self._sums, self._all = not world.alone, list(model.parameters.values())
        self._before: dict[str, str] = {}  # the grad_req of what set_frozen() has frozen
        self._never = {name: each for name, each in model.parameters.items() if name in names}
        self._resting: dict[Any, str] = {}  # the grad_req of these outside of training
        self._training = False

    # ---- building and checking

    def requests(self) -> Any:
        """Return what changes if other parameters learn, or if another norm is frozen."""
        return [parameter._grad_req for parameter in self._all], self.frozen.changes

    def _build(self) -> list[Problem]:
        """Initialise the parameters and build the trainers, or check again those that were built.

        If other parameters learn now, those of trainers that accumulate add up their gradients.
        """
        model, built = self._model, bool(self.handles)
        model.discard_static_graphs()
        problems = model.initialize() or model.lacking_gradients()
        if not problems and self._declared is None and not built:
            rate = (DEFAULT.optimizer_params or {})["learning_rate"]
            self._log_once(
                f"default trainer: {DEFAULT.optimizer}, learning rate {rate:g}, over all parameters"
            )
        bound, problems = bind_trainers(
            self._declared,
            model.parameters,
            self._frozen,
            model.contexts,
            built,
            problems,
            self._accumulate,
            self._before,
        )
        if bound is not None:
            self._take(bound)
            self._log_idle()
        problems = problems or self._unsummed()
        if not problems and self._training:
            self._begin()
        self.frozen.changed()
        return problems

    def _begin(self) -> None:
        """Let trainers add up gradients, and let MXNet compute none for what they never update."""
        self.added_gradients.begin()
        for parameter in self._never.values() if self._model.has_right_gradients else ():
            if parameter.grad_req != "null":
                self._resting[parameter] = parameter.grad_req
                parameter.grad_req = "null"

    def set_frozen(self, where: str, params: Any, frozen: bool) -> list[str]:
        """Freeze selected parameters and running statistics, or let them learn, from the next batch on.

        Trainers keep their states. Returns the names of those for which this is a change. `where` says in
        messages who selects. Raises TrainerError if nothing is selected, or what ``frozen=`` selects too.
        """
        names, problems = frozen_names(where, params, self._model.parameters)
        raise_problems(problems or frozen_problems(where, params, names, self._never))
        changed = self.frozen.set_statistics(names, frozen)
        for name in names & learnable(self._model.parameters).keys():
            parameter = self._model.parameters[name]
            if (parameter.grad_req == "null") == frozen:
                continue
            changed.append(name)
            if frozen:
                self._before[name] = self.added_gradients.declared_request(parameter)
            parameter.grad_req = "null" if frozen else self._before.pop(name, "write")
        return sorted(changed)

    def _log_idle(self) -> None:
        for name, held in self.parameters.items():
            if not trainable(held):
                selected = f'everything that it selects has grad_req="null": {listing(list(held))}'
                self._log_once(f'trainers["{name}"]: {selected}; it trains nothing until that is "write"')

    def _unsummed(self) -> list[Problem]:
        """Return the trainers whose gradients cannot be added up over the ranks."""
        problems: list[Problem] = []
        for name in self.handles if self._sums else ():
            sparse = [p.name for p in self.learning(name) if p._grad_stype != "default"]
            if sparse:
                what = f'"{name}" updates {", ".join(sparse)}, whose gradients are sparse'
                way_out = "cannot be added up over processes; build the layer with sparse_grad=False"
                problems.append(Problem("trainer", f"trainers: {what} and {way_out}"))
        return problems

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let trainers that accumulate add up gradients within the block; they may be built within it.

        What ``frozen=`` names has no gradients within it: the backward pass ends before.
        """
        self._training = True
        if self.handles and not self.build():  # problems are raised with the first batch
            self._begin()
        try:
            yield
        finally:
            self._training = False
            self.added_gradients.end()
            for parameter, request in self._resting.items():
                if parameter.grad_req == "null":  # else a handler has set it
                    parameter.grad_req = request
            self._resting = {}

    def prepare(self) -> None:
        """Initialise the parameters; raises an error with the problems found."""
        raise_problems(self._model.initialize())

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used, by trainer and parameter: one array per device.

        Parameters that the batch did not reach are left out, and so are trainers that do not update after it.
        """
        gradients: dict[str, dict[str, list[Array]]] = {}
        for trainer in self.get():
            if trainer in self.waiting:
                continue
            fresh = {name: p for name, p in self.updated(trainer).items() if is_fresh(replicas(p)[0])}
            gradients[trainer] = {name: p.list_grad() for name, p in fresh.items()}
        return gradients

    def unreached(self) -> list[Problem]:
        """Return parameters whose shape is still unknown after a forward pass, as a problem."""
        return unreached_problems([name for name, p in self.updated().items() if p._deferred_init])

    def not_updated(self) -> list[str]:
        """Return the names of the parameters that could learn, but that no trainer updates now."""
        updated = self.updated()
        return [name for name in learnable(self._model.parameters) if name not in updated]

    def updated(self, trainer: str | None = None) -> dict[str, Any]:
        """Return the parameters that a trainer, or any, updates as their ``grad_req`` is now, by name."""
        held = self.get().parameters
        names = held if trainer is None else [trainer]
        return {name: p for each in names for name, p in trainable(held[each]).items()}

    # ---- a step

    def _take(self, bound: Bound) -> None:
        self._trainers, self.clip_norms, self.parameters, self.options, self.rhythms = bound
        self.handles = {name: TrainerHandle(name, trainer) for name, trainer in bound.trainers.items()}
        self._updates = {name: FusedUpdate(trainer) for name, trainer in bound.trainers.items()}
        accumulating = [name for name, rhythm in bound.rhythms.items() if rhythm.accumulate]
        self.added_gradients = AddedGradients({name: bound.trainers[name] for name in accumulating})

    def learning(self, name: str) -> list[Any]:
        """Return the parameters that a trainer updates now."""
        return updated_parameters(self._trainers[name])

    def due(self, step: int, samples: int, ends: bool) -> list[str]:
        """Return the trainers that update after a batch, as for any library."""
        if self.rhythms:
            self.added_gradients.remember()
        return super().due(step, samples, ends)

    def reduce(self, name: str) -> None:
        """Add up a trainer's gradients over the batches of an update, and over the devices."""
        super().reduce(name)
        trainer = self._trainers[name]
        if not trainer._kv_initialized:
            start_kvstore(trainer)
        if len(trainer._contexts) > 1:
            zero_stale(trainer)
        trainer.allreduce_grads()

    def clip(self, name: str) -> None:
        """Scale a trainer's gradients down to its largest global norm; it must have one."""
        clip_gradients(self._trainers[name], self.clip_norms[name])

    def _update(self, name: str) -> None:
        """Update a trainer's parameters; an error of the optimizer or of its schedule names the trainer."""
        try:
            self._updates[name]()
        except Exception:
            with user_code(lambda: f'trainers["{name}"]'):
                raise
        for parameter in self._trainers[name]._params:
            if parameter._grad_req == "add":
                parameter.zero_grad()

    def _multiply(self, name: str, factor: float) -> None:
        scale_gradients(self.learning(name), factor)

    def _discard(self, name: str, keeps_own_sums: bool = False) -> None:
        discard_gradients(p for p in self.learning(name) if not keeps_own_sums or p.grad_req != "add")


def bound_parameters(terms: Sequence[Term], trainers: Trainers) -> dict[str, frozenset[str]]:
    """Return, for each loss that is bound to trainers, the names of the parameters that it trains."""
    parameters = {name: trainers.learning(name) for name in trainers.get()}
    return {
        term.key: frozenset(parameter.name for name in term.trainers for parameter in parameters[name])
        for term in terms
        if term.trainers
    }
