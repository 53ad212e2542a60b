"""The trainers of a model: built when first needed, because parameters must be initialised before.

Also the losses that are bound to trainers: the parameters that they train, and checks of trainers' names.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ...checks.trainers import (
    accumulating_problems,
    declared_rhythm,
    frozen_problems,
    listing,
    unreached_problems,
)
from ...errors import Problem, raise_problems
from ...protocols import Array
from ...spec.terms import Term
from ..optim.binding import DEFAULT, bind_trainers, frozen_names
from ..optim.gradients import is_fresh, replicas, updated_parameters
from ..optim.parameters import learnable
from ..optim.trainers import Trainers
from ..step.blocks import Frozen
from .model import Model


class ModelTrainers:
    """Builds the trainers of a model, and knows which parameters they update.

    They are built once, because they have states. Which of their parameters they update can change at any
    time, with the parameters' ``grad_req``.

    `declared`, `frozen` and `accumulate` are the `trainers`, `frozen` and `accumulate` of
    :class:`multifit.MultiEstimator`; the attribute `frozen` says what is frozen now.

    `window` is the number of batches after which all trainers that accumulate have updated: 1 if none does.
    """

    def __init__(
        self, declared: Any, frozen: Any, model: Model, log_once: Callable[[str], None], accumulate: int = 1
    ) -> None:
        self._declared, self._frozen, self._model, self._log_once = declared, frozen, model, log_once
        names, _ = frozen_names("frozen", frozen, model.parameters)
        self.frozen = Frozen(model.net, model.parameters, names)
        self._accumulate = accumulate
        named = declared.values() if isinstance(declared, Mapping) else [declared]
        self.window = math.lcm(*(declared_rhythm(each, accumulate).window for each in named))
        self._trainers: Trainers | None = None
        self._requests: list[str] = []  # each parameter's grad_req, for which trainers were checked
        self._before: dict[str, str] = {}  # the grad_req of what set_frozen() has frozen
        self._never = {name: each for name, each in model.parameters.items() if name in names}
        self._resting: dict[Any, str] = {}  # the grad_req of these outside of training
        self._training = False

    def window_of(self, name: str) -> int:
        """Return the number of batches whose gradients a trainer adds up to an update."""
        return self.get().window(name)

    def build(self) -> list[Problem]:
        """Initialise the parameters and build the trainers, unless that is done; return the problems.

        Called before each batch too, because other parameters may be trainable now: that each of them has one
        trainer is checked again, and those of trainers that accumulate add up their gradients.
        """
        if self._trainers is not None and self._requests == self.frozen.requests():
            return []
        self._model.discard_static_graphs()
        problems = self._model.initialize() or self._model.lacking_gradients()
        if not problems and self._declared is None and self._trainers is None:
            rate = (DEFAULT.optimizer_params or {})["learning_rate"]
            self._log_once(
                f"default trainer: {DEFAULT.optimizer}, learning rate {rate:g}, over all parameters"
            )
        model = self._model
        trainers, problems = bind_trainers(
            self._declared,
            model.parameters,
            self._frozen,
            model.contexts,
            self._trainers,
            problems,
            self._accumulate,
            self._before,
        )
        if trainers is not None:
            if self._trainers is None:
                self._log_idle(trainers)
            self._trainers = trainers
            if self._training:
                self._begin(trainers)
            self._requests = self.frozen.requests()
        return problems

    def _begin(self, trainers: Trainers) -> None:
        """Let trainers add up gradients, and let MXNet compute none for what they never update."""
        trainers.added_gradients.begin()
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
                added = None if self._trainers is None else self._trainers.added_gradients
                self._before[name] = added.declared_request(parameter) if added else parameter.grad_req
            parameter.grad_req = "null" if frozen else self._before.pop(name, "write")
        return sorted(changed)

    def _log_idle(self, trainers: Trainers) -> None:
        for name, held in trainers.parameters.items():
            if not trainers.updated(name):
                selected = f'everything that it selects has grad_req="null": {listing(list(held))}'
                self._log_once(f'trainers["{name}"]: {selected}; it trains nothing until that is "write"')

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let trainers that accumulate add up gradients within the block; they may be built within it.

        What ``frozen=`` names has no gradients within it: the backward pass ends before.
        """
        self._training = True
        if self._trainers is not None and not self.build():  # problems are raised with the first batch
            self._begin(self._trainers)
        try:
            yield
        finally:
            self._training = False
            if self._trainers is not None:
                self._trainers.added_gradients.end()
            for parameter, request in self._resting.items():
                if parameter.grad_req == "null":  # else a handler has set it
                    parameter.grad_req = request
            self._resting = {}

    @property
    def left(self) -> bool:
        """Whether gradients that were added up wait for further batches."""
        return self._trainers is not None and bool(self._trainers.added_gradients.waiting())

    def check_none_accumulates(self) -> None:
        """Raise TrainerError if trainers add up gradients, which they do only in a :meth:`training` block.

        Other problems with trainers are raised with the first batch.
        """
        rhythms = {} if self._are_wrong() else self.get().rhythms
        raise_problems(accumulating_problems(rhythms))

    def prepare(self) -> None:
        """Initialise the parameters; raises an error with the problems found."""
        raise_problems(self._model.initialize())

    def get(self) -> Trainers:
        """Return the trainers; raises TrainerError if they cannot be built or do not cover the parameters."""
        if self._trainers is None:
            raise_problems(self.build())
        assert self._trainers is not None  # its problems were raised above
        return self._trainers

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates; empty if the trainers cannot be built.

        Handlers call this before the first batch, with which all problems of trainers, spec and data are
        raised at once.
        """
        return {} if self._are_wrong() else self.get().learning_rates()

    def _are_wrong(self) -> bool:
        """Build the trainers, unless that is done; return whether they could not be built."""
        return self._trainers is None and bool(self.build())

    def gradients(self) -> dict[str, dict[str, list[Array]]]:
        """Return the gradients that no update has used, by trainer and parameter: one array per device.

        Parameters that the batch did not reach are left out, and so are trainers that do not update after it.
        """
        gradients: dict[str, dict[str, list[Array]]] = {}
        trainers = self.get()
        for trainer in trainers:
            if trainer in trainers.waiting:
                continue
            fresh = {name: p for name, p in trainers.updated(trainer).items() if is_fresh(replicas(p)[0])}
            gradients[trainer] = {name: p.list_grad() for name, p in fresh.items()}
        return gradients

    def unreached(self) -> list[Problem]:
        """Return parameters whose shape is still unknown after a forward pass, as a problem."""
        parameters = self._model.parameters
        deferred = [name for name in self.updated() if parameters[name]._deferred_init]
        return unreached_problems(deferred)

    def not_updated(self) -> list[str]:
        """Return the names of the parameters that could learn, but that no trainer updates now."""
        updated = set(self.updated())
        return [name for name in learnable(self._model.parameters) if name not in updated]

    def updated(self) -> list[str]:
        """Return the names of the parameters that trainers update."""
        trainers = self.get()
        return [name for trainer in trainers for name in trainers.updated(trainer)]


def bound_parameters(terms: Sequence[Term], trainers: ModelTrainers) -> dict[str, frozenset[str]]:
    """Return, for each loss that is bound to trainers, the names of the parameters that it trains."""
    parameters = {name: updated_parameters(trainer) for name, trainer in trainers.get().items()}
    return {
        term.key: frozenset(parameter.name for name in term.trainers for parameter in parameters[name])
        for term in terms
        if term.trainers
    }
