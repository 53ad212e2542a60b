"""The net on its device: its parameters, its modes, its precision, and the spec of a net without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from ..errors import Problem, SpecError, quoted, raise_problems, shown, suggest
from ..log_once import LogOnce
from ..spec import LossSpec, MetricSpec, TaskSpec
from .devices import device_of

METRICS = (
    (nn.CrossEntropyLoss, "accuracy"),
    (nn.NLLLoss, "accuracy"),
    (nn.BCEWithLogitsLoss, "binary_accuracy"),
    (nn.MSELoss, "rmse"),
    (nn.HuberLoss, "rmse"),
    (nn.SmoothL1Loss, "rmse"),
    (nn.L1Loss, "mae"),
)


def default_spec(loss: object, log_once: Callable[[str], None]) -> TaskSpec:
    """Return the TaskSpec for a net with one input, output and label, and log the defaults.

    The names are "data", "output" and "label". The metric is accuracy for cross entropy, binary accuracy for
    that of logits, RMSE for squared and Huber losses, and MAE for L1; other losses have none. Raises
    SpecError if `loss` is not a loss.
    """
    if not callable(loss) or isinstance(loss, type):
        raise SpecError(
            f"spec is {shown(loss)}; give a TaskSpec, or one loss for a net with one input, one output and "
            "one label"
        )
    kind = getattr(loss, "__name__", type(loss).__name__)
    log_once(
        f"default TaskSpec for {kind}: the net's input is called data, its output output, the label label"
    )
    names = [name for known, name in METRICS if type(loss) is known]
    log_once(f"default metric for {kind}: {', '.join(names) or 'none, only the loss'}")
    return TaskSpec(
        inputs=["data"], outputs=["output"], labels=["label"],
        losses={"output": LossSpec(loss, outputs="output", labels="label")},
        metrics={name: MetricSpec(name, outputs="output", labels="label") for name in names},
    )  # fmt: skip


@dataclass(frozen=True)
class Precision:
    """The dtype in which autocast computes the net; None for that of its parameters."""

    name: str
    dtype: torch.dtype | None = None

    def context(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context manager around the net's forward pass."""
        return nullcontext() if self.dtype is None else torch.autocast(device.type, self.dtype)


PRECISIONS = {
    "float32": Precision("float32"),
    "bfloat16": Precision("bfloat16", torch.bfloat16),
    "float16": Precision("float16", torch.float16),
}


def precision_of(name: object, device: torch.device) -> Precision:
    """Return the precision with a name; raises ValueError if there is none, or none on this device."""
    precision = PRECISIONS.get(name) if isinstance(name, str) else None
    if precision is None:
        raise ValueError(
            f"precision is {shown(name)}{suggest(name, PRECISIONS)}; valid are {quoted(PRECISIONS)}"
        )
    if precision.name == "float16" and device.type != "cuda":
        raise ValueError(f'precision is "float16", which needs a GPU, not {device}; give "bfloat16"')
    return precision


class Model:
    """A net with its parameters, on its device.

    `context` and `precision` are those of :class:`multifit.MultiEstimator`. Losses that are modules may have
    parameters too. Raises SpecError if `net` is not a module, and ValueError for a device that does not
    exist, or a precision that is unknown or that the device does not support.

    `parameters` are those of the net by name, such as ``body.0.weight``, and of losses, as
    ``losses.<key>.<name>``; a parameter with several names has the first one. `statistics` are the buffers,
    such as running means. `log_once` is called with a line to log once.
    """

    def __init__(self, net: Any, spec: TaskSpec, context: Any, precision: str, log_once: LogOnce) -> None:
        if not isinstance(net, nn.Module):
            raise SpecError(f"net is {shown(net)}, not a torch.nn.Module; give the net itself, an instance")
        self.net, self.log_once = net, log_once
        self._losses = {term.key: term.spec.fn for term in spec.terms if isinstance(term.spec.fn, nn.Module)}
        own = next((each.device for each in self._tensors().values()), None)
        on_gpu = own if own is not None and own.type != "cpu" else None
        self.device = device_of(on_gpu if context is None else context)
        self.precision = precision_of(precision, self.device)
        if self.precision.dtype is not None:
            log_once(f"precision: {precision} by autocast; parameters, losses and figures in float32")
        for module in (net, *self._losses.values()):
            module.to(self.device)
        self._read()
        self._modes: dict[nn.Module, bool] = {}
        self.in_training: bool | None = None  # the mode that was set last

    @property
    def contexts(self) -> list[torch.device]:
        """The device, in a list."""
        return [self.device]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of labels and figures that are real numbers: float64 if all parameters of the net are."""
        return torch.float64 if self.input_dtype is torch.float64 else torch.float32

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype of the real numbers that go into the net: that of its parameters, if they have one."""
        real = {each.dtype for each in self.net.parameters() if each.dtype.is_floating_point}
        return real.pop() if len(real) == 1 else torch.float32

    @property
    def is_lazy(self) -> bool:
        """Whether some parameters have no shape before the first batch."""
        tensors = *self.parameters.values(), *self.statistics.values()
        return any(isinstance(each, UninitializedTensorMixin) for each in tensors)

    def materialise(self, run: Callable[[], object]) -> None:
        """Give lazy modules the parameters that fit a batch; ``run()`` calls the net on it."""
        if not self.is_lazy:
            return
        with self.kept_modes(), torch.no_grad():
            self.set_mode(False, lambda: None)
            run()
        self._read()

    # ---- modes

    def begin(self) -> None:
        """Remember which modules are in training mode, as at the beginning of a fit.

        Those that the user has set to evaluation mode, in a net that trains, stay so.
        """
        trains = self.net.training
        self._modes = {each: each.training or not trains for each in self.modules()}
        self.in_training = None

    def set_mode(self, training: bool, frozen: Callable[[], object]) -> None:
        """Set all modules to training or evaluation mode, if they are not; ``frozen()`` then resets some."""
        if self.in_training is training and self.net.training is training:
            return
        for module in self.modules():
            module.training = training and self._modes.get(module, True)
        self.in_training = training
        if training:
            frozen()

    @contextmanager
    def kept_modes(self) -> Iterator[None]:
        """Give all modules the modes back that they have before the block."""
        before = {each: each.training for each in self.modules()}
        try:
            yield
        finally:
            for module, training in before.items():
                module.training = training
            self.in_training = None

    # ---- parameters

    def check_parameters(self) -> None:
        """Raise SpecError if net and losses no longer have the parameters that they had when it was made.

        Trainers would still update the old ones.
        """
        problem = self._changes()
        raise_problems([] if problem is None else [problem])

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Raise SpecError if net and losses have other parameters than when it was made."""
        self.check_parameters()
        yield

    def ran(self) -> list[Problem]:
        """Return a problem if a forward pass has made parameters that no trainer knows."""
        current = {id(each) for each in self.parameters.values()}
        made = [name for name, each in self._named().items() if id(each) not in current]
        if not made:
            return []
        message = (
            f"net: its forward pass has made {listing(made)}, which no trainer updates; make all layers in "
            "__init__, or call the net on a batch before MultiEstimator(net, spec, trainers)"
        )
        return [Problem("spec", message)]

    def _changes(self) -> Problem | None:
        current, known = self._named(), self.parameters
        ids, known_ids = {id(each) for each in current.values()}, {id(each) for each in known.values()}
        added = [name for name, each in current.items() if id(each) not in known_ids]
        removed = [name for name, each in known.items() if id(each) not in ids]
        changes = {
            "replaced": [name for name in removed if name in added],
            "added": [name for name in added if name not in removed],
            "removed": [name for name in removed if name not in added],
        }
        what = "; ".join(f"{change}: {listing(names)}" for change, names in changes.items() if names)
        if not what:
            return None
        message = f"net: it has other parameters than when the estimator was made; {what}"
        return Problem("spec", f"{message}; make a new MultiEstimator(net, spec, trainers) after changing it")

    def _read(self) -> None:
        self.parameters: dict[str, nn.Parameter] = self._named()
        self.statistics: dict[str, Tensor] = {
            name: each for name, each in self._tensors().items() if name not in self.parameters
        }

    def _named(self) -> dict[str, nn.Parameter]:
        of_losses = {
            f"losses.{key}.{name}": each
            for key, loss in self._losses.items()
            for name, each in loss.named_parameters()
        }
        named: dict[str, nn.Parameter] = {**dict(self.net.named_parameters()), **of_losses}
        seen: set[int] = set()
        return {n: p for n, p in named.items() if not (id(p) in seen or seen.add(id(p)))}  # type: ignore[func-returns-value]

    def _tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name."""
        buffers = {
            **dict(self.net.named_buffers()),
            **{f"losses.{k}.{n}": b for k, loss in self._losses.items() for n, b in loss.named_buffers()},
        }
        return {**self._named(), **buffers}

    def modules(self) -> Iterator[nn.Module]:
        """Yield all modules of the net, and of losses that are modules."""
        for root in (self.net, *self._losses.values()):
            yield from root.modules()


def listing(names: Sequence[str]) -> str:
    """Return names in quotes; of many, the first ones and how many more there are."""
    return quoted(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
