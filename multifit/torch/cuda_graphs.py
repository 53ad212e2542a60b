"""Captures net, losses and their backward pass as CUDA graphs, and replays them."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..distributed.log_once import LogOnce
from ..engines import CUDA_GRAPHS
from ..engines.scale import Scale
from .batch import Batch
from .losses import Losses
from .model import Model

CAPTURES = {"cuda"}  # kinds of devices
ERROR_MODE = "thread_local"  # CUDA forbids what is unsafe during a capture in this thread alone
WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms
MAX_GRAPHS = 32  # of a stage; each holds the memory of a step
MAX_FORMS = 1024  # that are remembered
FREE = 0.5  # of the GPU's memory must be free, for a graph keeps the memory of its step

Compute = Callable[[Batch, Scale], "tuple[dict[str, Tensor], Losses]"]
"""Returns the net's outputs, and what the losses computed from a batch."""


def cuda_graphs(model: Model, compile: bool | str, log_once: LogOnce) -> CudaGraphs | None:
    """Return what runs the batches of a stage as CUDA graphs; None if it is not asked for, or on a CPU."""
    if compile is False or model.device.type not in CAPTURES:
        return None
    return CudaGraphs(model, compile == CUDA_GRAPHS, log_once)


class CudaGraphs:
    """Runs a computation as CUDA graphs, for each form of a batch.

    Python launches a graph about as fast as a single operator. The first batch of a form runs operator by
    operator; the second one is captured, if there is memory or the user `requested` it. If a capture fails,
    from then on all forms run operator by operator.
    """

    def __init__(self, model: Model, requested: bool, log_once: LogOnce) -> None:
        self._model, self._requested, self._captures = model, requested, True
        self._log: Any = log_once.warning if requested else logging.getLogger("multifit").debug
        self._by_form: dict[Hashable, Captured | None] = {}  # None for forms that run operator by operator
        self._seen: set[Hashable] = set()
        self._modules = list(model.net.modules())

    def __call__(self, compute: Compute, batch: Batch, scale: Scale) -> tuple[dict[str, Tensor], Losses]:
        """Return what ``compute(batch, scale)`` returns; gradients are recorded if they are enabled."""
        form = self._form(batch, scale) if self._captures else None
        if form in self._seen and form not in self._by_form:
            self._by_form[form] = self._capture(compute, batch, scale)
        if len(self._seen) > MAX_FORMS:
            self._seen.clear()
        self._seen.add(form)
        captured = self._by_form.get(form)
        return compute(batch, scale) if captured is None else captured(batch, scale)

    def _form(self, batch: Batch, scale: Scale) -> Hashable:
        """Return all that a graph keeps: shapes, dtypes, numbers, and what is trained."""
        slots = tuple(
            (name, each is not None and (each.shape, each.dtype)) for name, each in batch.slots.items()
        )
        numbers = (
            tuple(scale.weights.values()),
            tuple(None if isinstance(each, Tensor) else each for each in scale.divisors.values()),
        )
        trained = tuple([each.requires_grad for each in self._model.parameters.values()])
        modes = tuple([module.training for module in self._modules])
        return torch.is_grad_enabled(), batch.samples, batch.total, slots, numbers, trained, modes

    def _capture(self, compute: Compute, batch: Batch, scale: Scale) -> Captured | None:
        """Return graphs for a form of batches; None if they cannot be captured."""
        device = self._model.device
        if len(self._by_form) >= MAX_GRAPHS:
            return None
        if not (self._requested or _has_room(device)):
            self._log("steps are not captured as CUDA graphs: half of the GPU's memory is in use")
            return None
        trained = [each for each in self._model.parameters.values() if each.requires_grad]
        # a capture that fails leaves its own stream as the current one
        same_stream = torch.cuda.stream(torch.cuda.current_stream(device))
        try:
            with _undone(self._model), torch.cuda.device(device), same_stream:
                return Captured(compute, batch, scale, trained if torch.is_grad_enabled() else [])
        except RuntimeError as error:
            why = str(error).partition("\n")[0]  # the lines after that say how to debug CUDA
            self._log(f"steps cannot be captured as CUDA graphs: {why}")
            self._captures = False
            self._by_form.clear()  # also those of other forms, for memory may be what is missing
            return None


class Captured:
    """A computation as CUDA graphs, for one form of batches; `trained` are differentiated."""

    def __init__(self, compute: Compute, batch: Batch, scale: Scale, trained: Sequence[Tensor]) -> None:
        self._inputs = [each.detach().clone() for each in _tensors(batch, scale)]
        inputs, self._trained = _replaced(batch, scale, self._inputs), trained
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._run(compute, inputs)
        finally:
            current.wait_stream(stream)
        with _capturing(stream) as options:
            self._graph, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, **options):
                outputs, losses = compute(*inputs)
            objectives = list(losses.objectives.values())
            self._heads = [torch.ones_like(each) for each in objectives if each.requires_grad]
            if trained:
                with torch.cuda.graph(self._backward, **options):
                    self._gradients = self._differentiate(objectives)
        parts, sums = (_each(Tensor.detach, lists) for lists in (losses.parts, losses.sums))
        self._outputs = _detached(outputs)
        self._losses = Losses(parts, sums, _detached(losses.objectives))

    def __call__(self, batch: Batch, scale: Scale) -> tuple[dict[str, Tensor], Losses]:
        """Compute; later calls do not change what is returned, but only objectives have gradients."""
        torch._foreach_copy_(self._inputs, _tensors(batch, scale))
        computed = self._losses
        objectives = dict(zip(computed.objectives, _Replay.apply(self, *self._trained)))
        outputs = {name: each.clone() for name, each in self._outputs.items()}
        parts, sums = (_each(Tensor.clone, lists) for lists in (computed.parts, computed.sums))
        return outputs, Losses(parts, sums, objectives)

    def replay(self) -> tuple[Tensor, ...]:
        """Run the forward pass; return the objectives."""
        self._graph.replay()
        return tuple([each.clone() for each in self._losses.objectives.values()])

    def replay_backward(self, heads: Sequence[Tensor]) -> list[Tensor | None]:
        """Run the backward pass; return the gradients of the parameters, which the next one overwrites."""
        for parameter, gradient in zip(self._trained, self._gradients):
            kept = parameter.grad  # of an earlier batch, to which this one is added
            if kept is not None and gradient is not None and kept.data_ptr() == gradient.data_ptr():
                parameter.grad = kept.clone()
        torch._foreach_copy_(self._heads, list(heads))
        self._backward.replay()
        return [None if each is None else each.detach() for each in self._gradients]

    def _run(self, compute: Compute, inputs: tuple[Batch, Scale]) -> None:
        """Run once; in a function, so that its autograd graph is freed before the capture."""
        _, losses = compute(*inputs)
        if self._trained:
            self._heads = [torch.ones_like(each) for each in losses.objectives.values()]
            self._differentiate(list(losses.objectives.values()))

    def _differentiate(self, objectives: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients; no two of them share memory, so that they may be changed in place."""
        found = torch.autograd.grad(objectives, self._trained, self._heads, allow_unused=True)
        taken, own = {each.data_ptr() for each in self._heads}, list[Tensor | None]()
        for each in found:
            own.append(each.clone() if each is not None and each.data_ptr() in taken else each)
            taken.update(() if each is None else [each.data_ptr()])
        return own


class _Replay(torch.autograd.Function):
    """The objectives as a function of the parameters."""

    @staticmethod
    def forward(ctx: Any, captured: Captured, *trained: Tensor) -> tuple[Tensor, ...]:
        ctx.captured = captured
        return captured.replay()

    @staticmethod
    def backward(ctx: Any, *heads: Any) -> Any:
        return None, *ctx.captured.replay_backward(heads)


def _tensors(batch: Batch, scale: Scale) -> list[Tensor]:
    """Return the tensors that go into a computation: slots, and divisors that were counted."""
    slots = [each for each in batch.slots.values() if each is not None]
    divisors = [each.to(slots[0].device) for each in scale.divisors.values() if isinstance(each, Tensor)]
    return slots + divisors


def _replaced(batch: Batch, scale: Scale, tensors: Sequence[Tensor]) -> tuple[Batch, Scale]:
    """Return a batch and its scale with other tensors, in the order of :func:`_tensors`."""
    rest = iter(tensors)
    slots = {name: None if each is None else next(rest) for name, each in batch.slots.items()}
    divisors = {k: next(rest) if isinstance(each, Tensor) else each for k, each in scale.divisors.items()}
    return replace(batch, slots=slots), replace(scale, divisors=divisors)


def _detached(tensors: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {name: each.detach() for name, each in tensors.items()}


def _each(change: Callable[[Tensor], Tensor], lists: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {key: list(map(change, tensors)) for key, tensors in lists.items()}


@contextmanager
def _undone(model: Model) -> Iterator[None]:
    """Restore buffers, such as running statistics, and random numbers after the block."""
    kept = {name: each.clone() for name, each in model.statistics.items()}
    try:
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            yield
    finally:
        for name, each in model.statistics.items():
            each.copy_(kept[name])


def _has_room(device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    # of what torch has reserved, a step operator by operator still needs as much as it has used at most
    unused = torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return free + unused >= FREE * total


@contextmanager
def _capturing(stream: Any) -> Iterator[dict[str, Any]]:
    """Yield options for the graphs that are captured in the block, on one stream.

    Operators must have run on the stream before. The graphs share a pool of memory, because they are replayed
    in the order in which they are captured. Torch's default stream for captures belongs to the device that
    captured first, so it may be another GPU's. Other threads may use CUDA meanwhile, as a loader's that pins
    memory does.
    """
    pool = torch.cuda.graph_pool_handle()
    # The workspaces of cuBLAS then come from the pool. Other code, such as a graph that is deleted, frees
    # those of the stream, and a replay would write to memory that is not its own.
    torch._C._cuda_clearCublasWorkspaces()
    collects = gc.isenabled()
    gc.disable()  # garbage may contain other graphs: the end of one would end a capture
    try:
        yield {"pool": pool, "stream": stream, "capture_error_mode": ERROR_MODE}
    except RuntimeError:
        _recover(pool)
        raise
    finally:
        if collects:
            gc.enable()


def _recover(pool: Any) -> None:
    """End what a capture that failed has left open in some versions of PyTorch.

    Its memory would remain reserved. Random numbers, which are counted by graphs during captures, could not
    be drawn before the end of another capture.
    """
    with suppress(RuntimeError, AttributeError):  # it has ended, or this version has no such function
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    empty = torch.cuda.CUDAGraph()
    with suppress(RuntimeError), warnings.catch_warnings(), torch.cuda.stream(torch.cuda.Stream()):
        warnings.simplefilter("ignore")  # PyTorch warns of graphs that are empty
        empty.capture_begin(capture_error_mode=ERROR_MODE)
        empty.capture_end()
