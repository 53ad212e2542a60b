"""The net on its device: its parameters, its modes, its precision, and the spec of a net without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..distributed.log_once import LogOnce
from ..engines import model, precision_name
from ..spec import TaskSpec
from ..utils.errors import Problem, raise_problems
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
    return model.default_spec(
        loss, log_once, lambda loss: {name: name for kind, name in METRICS if type(loss) is kind}
    )


PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision(NamedTuple):
    """The dtype in which autocast computes the net; None for that of its parameters."""

    name: str
    dtype: torch.dtype | None


class Model:
    """A net with its parameters, on its device.

    `context` and `precision` are those of :class:`multifit.MultiEstimator`. Losses that are modules may have
    parameters too. Raises ValueError for a device that does not exist, or a precision that is unknown or that
    the device does not support.

    `parameters` are those of the net by name, such as ``body.0.weight``, and of losses, as
    ``losses.<key>.<name>``; a parameter with several names has the first one. `statistics` are the buffers,
    such as running means. `log_once` is called with a line to log once.
    """

    def __init__(self, net: Any, spec: TaskSpec, context: Any, precision: str, log_once: LogOnce) -> None:
        self.net, self.log_once = net, log_once
        self._losses = {term.key: term.spec.fn for term in spec.terms if isinstance(term.spec.fn, nn.Module)}
        every = {**self._named("parameters"), **self._named("buffers")}
        own = next((each.device for each in every.values()), None)
        on_gpu = own if own is not None and own.type != "cpu" else None
        self.device = device_of(on_gpu if context is None else context)
        self.precision = Precision(precision_name(precision), PRECISIONS[precision])
        if precision == "float16" and self.device.type != "cuda":
            raise ValueError(f'precision is "float16", which needs a GPU, not {self.device}; give "bfloat16"')
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
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return {**self.parameters, **self.statistics}

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
        return any(map(is_lazy, self.tensors.values()))

    def materialise(self, run: Callable[[], object]) -> None:
        """Give lazy modules the parameters that fit a batch; ``run()`` calls the net on it."""
        if not self.is_lazy:
            return
        with self.kept_modes(), torch.no_grad():
            self.set_mode(False, lambda: None)
            run()
        self._read()

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context manager around the net's forward pass."""
        dtype = self.precision.dtype
        if dtype is None:
            return nullcontext()
        # the cache is emptied at the end of the outermost block only, which is that of the whole run
        return torch.autocast(self.device.type, dtype, cache_enabled=False)

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
        raise_problems(model.changed_problems(self._named("parameters"), self.parameters))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Raise SpecError if net and losses have other parameters than when it was made."""
        self.check_parameters()
        yield

    def ran(self) -> list[Problem]:
        """Return a problem if a forward pass has made parameters that no trainer knows."""
        return model.made_problems(self._named("parameters"), self.parameters)

    def _read(self) -> None:
        self.parameters: dict[str, nn.Parameter] = self._named("parameters")
        self.statistics: dict[str, Tensor] = self._named("buffers")

    def _named(self, kind: str) -> dict[str, Any]:
        """Return "parameters" or "buffers" by name; one with several names has the first one."""
        roots = {"": self.net, **{f"losses.{key}": loss for key, loss in self._losses.items()}}
        found: dict[int, tuple[str, Any]] = {}
        for prefix, root in roots.items():
            for name, each in getattr(root, f"named_{kind}")(prefix):
                found.setdefault(id(each), (name, each))
        return dict(found.values())

    def modules(self) -> Iterator[nn.Module]:
        """Yield all modules of the net, and of losses that are modules."""
        for root in (self.net, *self._losses.values()):
            yield from root.modules()
