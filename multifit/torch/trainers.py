"""The trainers of a net: each trainable parameter has exactly one, or is frozen."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..distributed import ALONE, World
from ..engines.rhythm import AddedBatches, declared_rhythm
from ..spec import TrainerSpec
from ..spec.checks.trainers import (
    coverage_problems,
    declared_problems,
    frozen_problems,
    listing,
    rhythm_messages,
    unreached_problems,
)
from ..utils.errors import Problem, raise_problems
from ..utils.text import shown
from .handle import TrainerHandle
from .optimizers import HOW, build_trainer, closure_messages, declared_options
from .selection import Named, Selected, Selection
from .updates import LossScale, Updates

DEFAULT = TrainerSpec(".*", "adam", {"lr": 1e-3})


class Trainers(Updates):
    """Builds the trainers of a model when they are first needed, and updates its parameters.

    A trainer holds all parameters that it selects, and updates those of them that require gradients at the
    time. `declared`, `frozen` and `accumulate` are the `trainers`, `frozen` and `accumulate` of
    :class:`multifit.MultiEstimator`. `log_once` is called with lines to log.

    `parameters` are those that each trainer holds, by name, and `options` those of its TrainerSpec.
    """

    def __init__(
        self,
        declared: Any,
        frozen: Any,
        model: Any,
        log_once: Callable[[str], None],
        accumulate: int = 1,
        world: World = ALONE,
    ) -> None:
        super().__init__(declared, accumulate, world)
        single = not isinstance(declared, Mapping)
        named = {"trainer": DEFAULT if declared is None else declared} if single else declared
        self._declared = {
            n: each.optimizer if isinstance(each, TrainerHandle) else each for n, each in named.items()
        }
        self._where = {name: "trainers" if single else f'trainers["{name}"]' for name in named}
        self._model, self._log_once = model, log_once
        self._selection = Selection(model, frozen)
        self._every, self.frozen_statistics = self._selection.parameters, self._selection.frozen_statistics
        self.after_train_mode = self._selection.apply  # to be called after ``net.train()``
        self._rhythms = {name: declared_rhythm(each, accumulate) for name, each in self._declared.items()}
        self.rhythms = {name: rhythm for name, rhythm in self._rhythms.items() if rhythm.every > 1}
        self.parameters: dict[str, Named] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self._later: set[str] = set()  # what set_frozen() has frozen

    # ---- building and checking

    def requests(self) -> list[bool]:
        """Return whether each parameter requires gradients."""
        return [each.requires_grad for each in self._every.values()]

    def _build(self) -> list[Problem]:
        """Build the trainers, or check that each parameter that learns now has one of them."""
        problems = self._coverage() if self.handles else self._bind()
        if not problems:
            self._trained = {trainer: _trainable(held) for trainer, held in self.parameters.items()}
            for each in self._every.values():
                if not each.requires_grad:  # optimizers would still use the gradient that it has
                    each.grad = None
            self._selection.apply()
        return problems

    def _bind(self) -> list[Problem]:
        library = Optimizer, "torch.optim.Optimizer"
        problems = declared_problems(self._declared, self._where, library, lambda each: each)
        valid = {n: each for n, each in self._declared.items() if isinstance(each, (TrainerSpec, Optimizer))}
        selected = list(self._selection.problems)
        for name, value in valid.items():
            names, more = self._held(self._where[name], value)
            self.parameters[name] = {each: self._every[each] for each in names}
            selected += more
        if self._every and not _trainable(self._every):
            way_out = "unfreeze() some, freeze fewer, or let some require gradients"
            message = f"trainers: the net has no parameters to train: {way_out}"
            selected.append(Problem("trainer", message))
        # parameters without a trainer are reported only if all trainers are valid: they may belong to those
        complete = not selected and len(valid) == len(self._declared)
        problems += self._coverage() if complete else selected
        handles: dict[str, TrainerHandle] = {}
        for name, value in valid.items():
            where, held = self._where[name], self.parameters[name]
            messages = rhythm_messages(where, self._rhythms[name], self._accumulate)
            sparse = sorted(self._selection.sparse & held.keys())
            if isinstance(value, Optimizer):
                handle: TrainerHandle | None = TrainerHandle(name, value)
            else:
                real = all(each.dtype in (torch.float32, torch.float64) for each in held.values())
                fused = real and not sparse and self._model.device.type == "cpu"
                handle, others = build_trainer(name, where, value, [*held.values()], fused)
                messages += others
                if value.clip_norm is not None and sparse:
                    what = f"clip_norm needs dense gradients, but those of {listing(sparse)} are sparse"
                    messages.append(f"{where}: {what}; build the layer with sparse=False")
            if handle is not None:
                handles[name] = handle
                messages += closure_messages(where, handle.optimizer)
            problems += [Problem("trainer", message) for message in messages]
        if not problems:
            self._take(handles)
        return problems

    def _take(self, handles: dict[str, TrainerHandle]) -> None:
        """Take trainers that are valid."""
        if self._declared.get("trainer") is DEFAULT:
            self._log_once("default trainer: adam, learning rate 0.001, over all parameters")
        for name, held in self.parameters.items():
            if not _trainable(held):
                selected = f"nothing that it selects requires gradients: {listing(list(held))}"
                self._log_once(f'trainers["{name}"]: {selected}; it trains nothing until that changes')
        specs = {name: each for name, each in self._declared.items() if isinstance(each, TrainerSpec)}
        self.handles, self.options = handles, {name: declared_options(each) for name, each in specs.items()}
        self.clip_norms = {
            n: float(each.clip_norm) for n, each in specs.items() if each.clip_norm is not None
        }
        self.added_gradients = AddedBatches(
            name for name, rhythm in self.rhythms.items() if rhythm.accumulate
        )
        self.loss_scale = LossScale() if self._model.precision.name == "float16" else None

    def _held(self, where: str, declared: Any) -> Selected:
        """Return the names of the parameters that a trainer holds, and the problems found."""
        frozen, messages = self._selection.frozen, []
        if isinstance(declared, TrainerSpec):
            names, problems = self._selection.select(where, declared.params, self._every)
            held = [name for name in names if name not in frozen]
            if not held and not problems:
                found = f"params is {shown(declared.params)}, which selects nothing"
                found = f"everything that it selects is frozen: {listing(names)}" if names else found
                problems = [Problem("trainer", f"{where}: {found}; leave it out, or narrow frozen=")]
            return held, problems
        own = {id(each): each for group in declared.param_groups for each in group["params"]}
        held = [name for name, each in self._every.items() if id(each) in own]
        foreign = own.keys() - {id(self._every[name]) for name in held}
        shapes = [
            str(tuple(each.shape)) for key, each in own.items() if key in foreign and each.requires_grad
        ]
        if shapes:
            what = f"holds parameters that the net does not have, of the shapes {', '.join(shapes[:6])}"
            messages.append(f"{where}: {what}; build it from net.parameters()")
        contradicting = [name for name in held if name in frozen and self._every[name].requires_grad]
        if contradicting:
            messages.append(
                f"{where}: updates parameters that frozen= names: {listing(contradicting)}; take them out of "
                "the optimizer, or give a TrainerSpec, from which frozen parameters are subtracted"
            )
        return held, [Problem("trainer", message) for message in messages]

    def _coverage(self) -> list[Problem]:
        """Check that each parameter that learns now, or will again, has exactly one trainer."""
        learning = {n: p for n, p in self._every.items() if p.requires_grad or n in self._later}
        updated = {name: [n for n in held if n in learning] for name, held in self.parameters.items()}
        return coverage_problems(updated, learning, self._selection.frozen)

    # ---- freezing

    def set_frozen(self, where: str, params: Any, frozen: bool) -> list[str]:
        """Freeze selected parameters and running statistics, or let them learn, from the next batch on.

        Optimizers keep their states. Returns the names of those for which this is a change. `where` says in
        messages who selects. Raises TrainerError if nothing is selected, or what ``frozen=`` selects too.
        """
        names, problems = self._selection.select(where, params, self._selection.named)
        raise_problems(problems or frozen_problems(where, params, names, self._selection.frozen))
        changed = {n for n in names if n in self._every and self._every[n].requires_grad == frozen}
        for name in changed:
            self._every[name].requires_grad = not frozen
        self._later = self._later | changed if frozen else self._later - changed
        still = self._selection.still
        statistics = {n for n in names if n not in self._every and (n in still) != frozen}
        self._selection.still = still ^ statistics
        self._selection.apply()
        return sorted(changed | statistics)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute no gradients of what ``frozen=`` names within the block, in which trainers may be built.

        Gradients that still wait at its end, as those of a fit that failed, are discarded.
        """
        names = self._selection.frozen
        resting = [each for name, each in self._every.items() if name in names and each.requires_grad]
        for each in resting:
            each.requires_grad = False
        try:
            yield
        finally:
            for each in resting:
                each.requires_grad = True
            self.discard_held(self.handles)

    # ---- what the estimator and its handlers ask for

    def updated(self, trainer: str | None = None) -> Named:
        """Return the parameters that a trainer, or any, updates now, by name."""
        trained: dict[str, Named] = self.get()._trained
        named = trained.values() if trainer is None else [trained[trainer]]
        return {name: each for held in named for name, each in held.items()}

    def not_updated(self) -> list[str]:
        """Return the names of the parameters that no trainer updates now."""
        updated = self.updated()
        return [name for name in self._every if name not in updated]

    def unreached(self) -> list[Problem]:
        """Return parameters whose shape is still unknown after a forward pass, as a problem."""
        return unreached_problems([name for name, each in self.updated().items() if is_lazy(each)])

    def gradients(self) -> dict[str, dict[str, list[torch.Tensor]]]:
        """Return the gradients that no update has used, by trainer and parameter: a list of one tensor.

        Parameters that the batch did not reach are left out, and so are trainers that wait.
        """
        trained = {name: each for name, each in self.get()._trained.items() if name not in self.waiting}
        return {
            trainer: {name: [each.grad] for name, each in named.items() if each.grad is not None}
            for trainer, named in trained.items()
        }

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return all that changes while the trainers train: a tree of tensors and plain values.

        It refers to the optimizers' own tensors: write it, or copy them, before the next step. "gradients"
        are those that wait, by name; they differ between ranks.
        """
        trainers = {}
        for name, handle in self.get().items():
            state, held = handle.optimizer.state_dict(), self._names(handle)
            groups = [
                {key: group[key] for key in group if key != "params"} for group in state["param_groups"]
            ]
            states = {held[number]: values for number, values in state["state"].items()}
            trainers[name] = {"states": states, "groups": groups, "rates": handle.rates.state()}
        waiting = {
            n: p.grad for each in self.added_gradients.waiting() for n, p in self._trained[each].items()
        }
        return {
            "trainers": trainers,
            "added": self.added_gradients.state(),
            "loss_scale": self.loss_scale and [self.loss_scale.scale, self.loss_scale.finite],
            "requires_grad": {name: each.requires_grad for name, each in self._every.items()},
            "still": sorted(self._selection.still),
            "gradients": {name: each for name, each in waiting.items() if each is not None},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of trainers that were declared alike; copies the tensors."""
        for name, handle in self.get().items():
            saved, own = state["trainers"][name], handle.optimizer.state_dict()
            numbers = {each: number for number, each in enumerate(self._names(handle))}
            own["state"] = {numbers[each]: values for each, values in saved["states"].items()}
            for group, values in zip(own["param_groups"], saved["groups"]):
                group.update({key: value for key, value in values.items() if key not in HOW})
            handle.optimizer.load_state_dict(own)
            for each, values in saved["states"].items():  # torch casts some, and shares others
                loaded = handle.optimizer.state[self._every[each]]
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        loaded[key] = value.to(loaded[key].device, copy=True)
            handle.rates.load(saved["rates"])
        self.added_gradients.load(state["added"])
        if self.loss_scale:
            self.loss_scale.scale, self.loss_scale.finite = state["loss_scale"]
        for name, flag in state["requires_grad"].items():
            if name not in self._selection.frozen and self._every[name].requires_grad != flag:
                self._every[name].requires_grad = flag
                self._later ^= {name}
        self._selection.still = set(state["still"])
        raise_problems(self.build())
        for name, each in self._every.items():
            gradient = state["gradients"].get(name)
            each.grad = None if gradient is None else gradient.to(each.device, copy=True)

    def _names(self, handle: TrainerHandle) -> list[str]:
        """Return the names of an optimizer's parameters in its own order; it may hold others that rest."""
        names = {id(each): name for name, each in self._every.items()}
        return [names.get(id(each), "") for group in handle.param_groups for each in group["params"]]


def _trainable(parameters: Named) -> Named:
    return {name: each for name, each in parameters.items() if each.requires_grad}
