"""The trainers of a net: each trainable parameter has exactly one, or is frozen."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..checks.trainers import (
    AddedBatches,
    coverage_problems,
    declared_problems,
    declared_rhythm,
    listing,
    rhythm_messages,
    select_by_pattern,
    selects_nothing,
)
from ..errors import Problem, quoted, raise_problems, shown, suggest
from ..spec import TrainerSpec
from .handle import TrainerHandle
from .optimizers import CLOSURE, HOW, build_trainer, declared_options, needs_closure
from .updates import LossScale, Named, Updates

DEFAULT = TrainerSpec(".*", "adam", {"lr": 1e-3})


class Trainers(Updates, Mapping[str, TrainerHandle]):
    """Builds the trainers of a model when they are first needed, and updates the parameters by them.

    A trainer holds all parameters that it selects, and updates those of them that require gradients at the
    time. `declared`, `frozen` and `accumulate` are the `trainers`, `frozen` and `accumulate` of
    :class:`multifit.MultiEstimator`. `log_once` is called with lines to log.

    `parameters` are those that each trainer holds, by name. `options` are those of optimizers that were
    declared by name or class. `window` is the number of batches after which all trainers that accumulate have
    updated: 1 if none does.
    """

    def __init__(
        self, declared: Any, frozen: Any, model: Any, log_once: Callable[[str], None], accumulate: int = 1
    ) -> None:
        super().__init__()
        single = not isinstance(declared, Mapping)
        named = {"trainer": DEFAULT if declared is None else declared} if single else declared
        self._named = {
            name: each.optimizer if isinstance(each, TrainerHandle) else each for name, each in named.items()
        }
        self._where = {name: "trainers" if single else f'trainers["{name}"]' for name in named}
        self._is_default, self._model, self._log_once = declared is None, model, log_once
        self._accumulate, self._selections = accumulate, _Selections(model)
        names, self._frozen_problems = self._selections.select(
            "frozen", () if frozen is None else frozen, self._selections.named
        )
        self._frozen = frozenset(names)
        self.window = math.lcm(*(declared_rhythm(each, accumulate).window for each in self._named.values()))
        self.parameters: dict[str, Named] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self._flags: list[bool] = []  # whether each parameter requires gradients, as it was checked
        self._later: set[str] = set()  # what set_frozen() has frozen
        self._still = set(self._frozen) - set(model.parameters)  # running statistics that are frozen
        self._in_eval: set[nn.Module] = set()  # the frozen BatchNorm layers

    # ---- the trainers by name

    def __getitem__(self, name: str) -> TrainerHandle:
        handles = self.get().handles
        if name not in handles:
            near = suggest(name, handles)
            raise KeyError(f"no trainer {quoted([name])}{near}; there are {quoted(handles)}")
        return handles[name]

    def __repr__(self) -> str:
        return f"Trainers({', '.join(map(str, self._named))})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def get(self, *name: Any) -> Any:
        """Return this, built; raises TrainerError if that cannot be done. With a name, as any mapping."""
        raise_problems([] if self.handles else self.build())
        return super().get(*name) if name else self

    # ---- what is trained

    def build(self) -> list[Problem]:
        """Build the trainers, unless that is done; return the problems.

        Called before each batch too: if other parameters require gradients now, that each of them has one
        trainer is checked again.
        """
        flags = [each.requires_grad for each in self._selections.tensors]
        if self.handles and flags == self._flags:
            return []
        problems = self._coverage() if self.handles else self._bind()
        if not problems:
            self._flags = flags
            self._trained = {trainer: _trainable(held) for trainer, held in self.parameters.items()}
            for each in self._selections.tensors:
                if not each.requires_grad:  # optimizers would still use the gradients that it has
                    each.grad = None
            self.after_train_mode()
        return problems

    def _bind(self) -> list[Problem]:
        named, where, every = self._named, self._where, self._model.parameters
        problems = declared_problems(named, where, (Optimizer, "torch.optim.Optimizer"), lambda each: each)
        valid = {name: each for name, each in named.items() if isinstance(each, (TrainerSpec, Optimizer))}
        if self._model.precision.name == "float16":
            self.loss_scale = LossScale()
        selection_problems = list(self._frozen_problems)
        for name, value in valid.items():
            names, more = self._held(where[name], value)
            self.parameters[name] = {each: every[each] for each in names}
            selection_problems += more
        if every and not _trainable(every):
            message = "the net has no parameters to train: unfreeze() some, freeze fewer, or let some require"
            selection_problems.append(Problem("trainer", f"trainers: {message} gradients (requires_grad_())"))
        # parameters without a trainer are reported only if all trainers are valid: they may belong to those
        if not selection_problems and len(valid) == len(named):
            selection_problems = self._coverage()
        problems += selection_problems
        handles = {}
        for name, value in valid.items():
            rhythm = declared_rhythm(value, self._accumulate)
            messages = rhythm_messages(where[name], rhythm, self._accumulate)
            held, sparse = self.parameters[name], self._selections.sparse & self.parameters[name].keys()
            if isinstance(value, Optimizer):
                handles[name] = TrainerHandle(name, value)
                if needs_closure(type(value)):
                    messages.append(f"{where[name]}: {CLOSURE.format(type(value).__name__)}")
            else:
                on_cpu = self._model.device.type == "cpu" and not sparse
                fused = on_cpu and all(each.is_floating_point() for each in held.values())
                parameters = list(held.values()) or [nn.Parameter(torch.zeros(()))]
                handle, more = build_trainer(name, where[name], value, parameters, fused)
                problems += more
                if handle is not None:
                    handles[name] = handle
                if value.clip_norm is not None and sparse:
                    messages.append(
                        f"{where[name]}: clip_norm needs dense gradients, but those of "
                        f"{listing(sorted(sparse))} are sparse; build the layer with sparse=False"
                    )
            problems += [Problem("trainer", message) for message in messages]
        if not problems:
            self._set_up(handles)
        return problems

    def _set_up(self, handles: dict[str, TrainerHandle]) -> None:
        """Take trainers that are valid."""
        if self._is_default:
            self._log_once("default trainer: adam, learning rate 0.001, over all parameters")
        specs = {name: each for name, each in self._named.items() if isinstance(each, TrainerSpec)}
        rhythms = {name: declared_rhythm(each, self._accumulate) for name, each in self._named.items()}
        self.handles = handles
        self.clip_norms = {
            n: float(each.clip_norm) for n, each in specs.items() if each.clip_norm is not None
        }
        self.options = {name: declared_options(each) for name, each in specs.items()}
        self.rhythms = {name: rhythm for name, rhythm in rhythms.items() if rhythm.every > 1}
        self._added = AddedBatches(name for name, rhythm in self.rhythms.items() if rhythm.accumulate)
        for name, held in self.parameters.items():
            if not _trainable(held):
                selected = f"nothing that it selects requires gradients: {listing(list(held))}"
                self._log_once(f'trainers["{name}"]: {selected}; it trains nothing until that changes')

    def _held(self, where: str, declared: Any) -> tuple[list[str], list[Problem]]:
        """Return the names of the parameters that a trainer holds, and the problems found."""
        every, frozen = self._model.parameters, self._frozen
        if isinstance(declared, TrainerSpec):
            names, problems = self._selections.select(where, declared.params, every)
            held = [name for name in names if name not in frozen]
            if not held and not problems:
                message = f"everything that it selects is frozen: {listing(names)}"
                message = message if names else f"params is {shown(declared.params)}, which selects nothing"
                problems = [Problem("trainer", f"{where}: {message}; leave it out, or narrow frozen=")]
            return held, problems
        own = {id(each): each for group in declared.param_groups for each in group["params"]}
        held = [name for name, each in every.items() if id(each) in own]
        in_net = {id(each) for each in every.values()}
        foreign = [tuple(own[key].shape) for key in own if key not in in_net and own[key].requires_grad]
        messages = []
        if foreign:
            messages.append(
                f"{where}: holds parameters that the net does not have, of the shapes "
                f"{', '.join(map(str, foreign[:6]))}; build it from net.parameters()"
            )
        contradicting = [name for name in held if name in frozen and every[name].requires_grad]
        if contradicting:
            messages.append(
                f"{where}: updates parameters that frozen= names: {listing(contradicting)}; take them out of "
                "the optimizer, or give a TrainerSpec, from which frozen parameters are subtracted"
            )
        return held, [Problem("trainer", message) for message in messages]

    def _coverage(self) -> list[Problem]:
        """Check that each parameter that learns now, or will again, has exactly one trainer."""
        every = self._model.parameters
        learning = {n: p for n, p in every.items() if p.requires_grad or n in self._later}
        updated = {name: [n for n in held if n in learning] for name, held in self.parameters.items()}
        return coverage_problems(updated, learning, self._frozen)

    def set_frozen(self, where: str, params: Any, frozen: bool) -> list[str]:
        """Freeze selected parameters and running statistics, or let them learn, from the next batch on.

        Optimizers keep their states. Returns the names of those for which this is a change. `where` says in
        messages who selects. Raises TrainerError if nothing is selected, or what ``frozen=`` selects too.
        """
        every = self._model.parameters
        selected, problems = self._selections.select(where, params, self._selections.named)
        names = set(selected)
        never = sorted(names & self._frozen)
        if never:
            message = f"{where}: frozen= has taken {listing(never)} from the trainers"
            problems.append(Problem("trainer", f"{message}; leave frozen= out, and freeze them later"))
        if not names and not problems:
            problems = [Problem("trainer", f"{where}: {shown(params)} selects no parameters; give a pattern")]
        raise_problems(problems)
        statistics = {name for name in names - every.keys() if (name in self._still) != frozen}
        changed = {name for name in names & every.keys() if every[name].requires_grad == frozen}
        self._still ^= statistics
        for name in changed:
            every[name].requires_grad = not frozen
        self._later = self._later | changed if frozen else self._later - changed
        self.after_train_mode()
        return sorted(statistics | changed)

    def after_train_mode(self) -> None:
        """Let frozen BatchNorm layers normalise by their running statistics; call it after ``net.train()``.

        As in Keras, such a layer does not change its statistics. It is frozen if everything that it learns
        is, or if its statistics are selected, as it may learn nothing.
        """
        before, norms = self._in_eval, self._selections.norms
        self._in_eval = {norm for norm, statistics, learns in norms if self._is_still(statistics, learns)}
        for norm in before - self._in_eval:
            norm.train(self._model.net.training)
        for norm in self._in_eval:
            norm.eval()

    def frozen_statistics(self) -> list[str]:
        """Return the names of the running statistics of frozen layers."""
        norms = self._selections.norms
        return [name for _, names, learns in norms if self._is_still(names, learns) for name in names]

    def _is_still(self, statistics: Sequence[str], learns: Sequence[str]) -> bool:
        every = self._model.parameters
        fixed = bool(learns) and all(n in self._frozen or not every[n].requires_grad for n in learns)
        return fixed or not self._still.isdisjoint(statistics)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute no gradients of what ``frozen=`` names within the block, in which trainers may be built.

        Gradients that still wait at its end, as those of a fit that failed, are discarded.
        """
        every = self._model.parameters
        resting = [p for n, p in every.items() if n in self._frozen and p.requires_grad]
        for each in resting:
            each.requires_grad = False
        try:
            yield
        finally:
            for each in resting:
                each.requires_grad = True
            if self._added.waiting():
                self.discard_held(list(self.handles))
            self._added.forget(self.handles)

    def check_none_accumulates(self) -> None:
        """Raise TrainerError if trainers add up gradients, which they do only in a fit.

        Other problems with trainers are raised with the first batch.
        """
        message = "accumulate=True adds up gradients within a fit only; call fit, or leave accumulate out"
        raise_problems(
            Problem("trainer", f'trainers["{name}"]: {message}')
            for name, rhythm in ({} if self.build() else self.rhythms).items()
            if rhythm.accumulate
        )

    @property
    def left(self) -> bool:
        """Whether gradients that were added up wait for further batches."""
        return bool(self._added.waiting())

    def window_of(self, name: str) -> int:
        """Return the number of batches whose gradients a trainer adds up to an update."""
        return self.rhythms[name].window if name in self.rhythms else 1

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures: ``lr``, or ``lr_<trainer>`` of several; {} if there are problems."""
        if not self.handles and self.build():
            return {}
        names = {name: f"lr_{name}" if len(self) > 1 else "lr" for name in self}
        rates = {names[name]: handle.learning_rate for name, handle in self.handles.items()}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def updated(self, trainer: str | None = None) -> Named:
        """Return the parameters that a trainer, or any, updates now, by name."""
        self.get()
        named = [self._trained[trainer]] if trainer is not None else self._trained.values()
        return {name: each for held in named for name, each in held.items()}

    def not_updated(self) -> list[str]:
        """Return the names of the parameters that no trainer updates now."""
        updated = self.updated()
        return [name for name in self._model.parameters if name not in updated]

    def unreached(self) -> list[Problem]:
        """Return parameters whose shape is still unknown after a forward pass, as a problem."""
        lazy = [name for name, each in self.updated().items() if is_lazy(each)]
        message = (
            f"the forward pass never reached {listing(lazy)}: no trainer can update what has no shape yet; "
            f'take the layer out of the net, or pass frozen=["{(lazy or [""])[0].rpartition(".")[0]}.*"]'
        )
        return [Problem("trainer", message)] if lazy else []

    def gradients(self) -> dict[str, dict[str, list[torch.Tensor]]]:
        """Return the gradients that no update has used, by trainer and parameter: a list of one tensor.

        Parameters that the batch did not reach are left out, and so are trainers that wait.
        """
        self.get()
        return {
            trainer: {name: [each.grad] for name, each in named.items() if each.grad is not None}
            for trainer, named in self._trained.items()
            if trainer not in self.waiting
        }

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return all that changes while the trainers train: a tree of tensors and plain values.

        It refers to the optimizers' own tensors: write it, or copy them, before the next step. "gradients"
        are those that wait, by name; they differ between ranks.
        """
        every, trainers = self._model.parameters, {}
        for name, handle in self.get().items():
            state, order = handle.optimizer.state_dict(), self._order(handle)
            groups = [{k: v for k, v in each.items() if k != "params"} for each in state["param_groups"]]
            states = {order[index]: each for index, each in state["state"].items()}
            trainers[name] = {"states": states, "groups": groups, "rates": handle.rates.state()}
        waiting = {n: p.grad for each in self._added.waiting() for n, p in self._trained[each].items()}
        return {
            "trainers": trainers,
            "added": self._added.state(),
            "loss_scale": self.loss_scale.state() if self.loss_scale else None,
            "requires_grad": {name: each.requires_grad for name, each in every.items()},
            "still": sorted(self._still),
            "gradients": {name: each for name, each in waiting.items() if each is not None},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, of trainers that were declared alike; copies the tensors."""
        every = self._model.parameters
        for name, handle in self.get().items():
            own, saved = handle.optimizer.state_dict(), state["trainers"][name]
            places = {each: index for index, each in self._order(handle).items()}
            groups = [
                {**fresh, **{key: value for key, value in group.items() if key not in HOW}}
                for fresh, group in zip(own["param_groups"], saved["groups"])
            ]
            states = {places[each]: copy.deepcopy(value) for each, value in saved["states"].items()}
            handle.optimizer.load_state_dict({**own, "state": states, "param_groups": groups})
            handle.rates.load(saved["rates"])
        self._added.load(state["added"])
        if self.loss_scale and state["loss_scale"]:
            self.loss_scale.load(state["loss_scale"])
        for name, flag in state["requires_grad"].items():
            if name not in self._frozen and every[name].requires_grad != flag:
                every[name].requires_grad = flag
                self._later ^= {name}
        self._still = set(state["still"])
        raise_problems(self.build())
        for name, each in every.items():
            gradient = state["gradients"].get(name)
            each.grad = None if gradient is None else gradient.to(each.device, copy=True)

    def _order(self, handle: TrainerHandle) -> dict[int, str]:
        """Return the names of an optimizer's parameters by their numbers in its ``state_dict``."""
        names = {id(each): name for name, each in self._model.parameters.items()}
        held = [each for group in handle.optimizer.param_groups for each in group["params"]]
        return {index: names.get(id(each), f"#{index}") for index, each in enumerate(held)}


class _Selections:
    """Knows the parameters and running statistics of a model by name, and selects some of them.

    `norms` are the layers with running statistics: each with their names, and those of what it learns.
    `sparse` are the names of parameters whose gradients are sparse.
    """

    def __init__(self, model: Any) -> None:
        self.tensors, self._net = list(model.parameters.values()), model.net
        self.norms: list[tuple[nn.Module, list[str], list[str]]] = []
        self.sparse: set[str] = set()
        self.named = dict(model.parameters)
        names = {id(each): name for name, each in model.parameters.items()}
        for prefix, module in model.net.named_modules():
            learns = [names[id(each)] for each in module.parameters(recurse=False)]
            if isinstance(module, _NormBase) and module.running_mean is not None:
                buffers = dict(module.named_buffers(prefix))
                self.named.update(buffers)
                self.norms.append((module, list(buffers), learns))
            if getattr(module, "sparse", False):
                self.sparse.update(learns)
        self._read: list[tuple[Any, list[Any]]] = []  # iterators, such as net.parameters(), with their items

    def select(self, where: str, params: Any, named: Mapping[str, Any]) -> tuple[list[str], list[Problem]]:
        """Return the names that a pattern, module, tensor or several of these select from `named`.

        `where` says in messages where the selection was declared. Also returns the problems found.
        """
        every = {**dict(self._net.named_buffers()), **self.named}
        if isinstance(params, str):
            first = {id(each): name for name, each in every.items()}
            others = self._net.named_parameters(remove_duplicate=False)
            other_names = {name: first[id(each)] for name, each in others if name not in every}
            return select_by_pattern(where, params, named, every, other_names)
        if isinstance(params, (nn.Module, torch.Tensor)):
            tensors = (
                [params] if isinstance(params, torch.Tensor) else [*params.parameters(), *params.buffers()]
            )
            ids = set(map(id, tensors))
            names = [name for name, each in named.items() if id(each) in ids]
            constant = [name for name, each in every.items() if id(each) in ids]
            what = f"the {type(params).__name__}"
            return names, [] if names else [selects_nothing(where, what, named, constant)]
        if not isinstance(params, Iterable) or isinstance(params, (bytes, Mapping)):
            way_out = "give a pattern (several are joined by |), a module or parameters"
            return [], [Problem("trainer", f"{where}: {shown(params)} selects no parameters; {way_out}")]
        items = next((items for read, items in self._read if read is params), None)
        if items is None:
            items = list(params)
            self._read.append((params, items))
        selections = [self.select(where, each, named) for each in items]
        chosen = {name for names, _ in selections for name in names}
        return [name for name in named if name in chosen], [each for _, more in selections for each in more]


def _trainable(parameters: Named) -> Named:
    return {name: each for name, each in parameters.items() if each.requires_grad}
