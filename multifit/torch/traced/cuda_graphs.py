"""Captures a step as CUDA graphs, and replays it."""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from .backward_pass import BackwardPass, ones_like
from .computation import CompileMode, Computation, Computed
from .tensors import restored, unshared

ERROR_MODE = "thread_local"  # CUDA forbids what is unsafe during a capture in this thread alone


@contextmanager
def capturing(stream: Any) -> Iterator[Mapping[str, Any]]:
    """Yield options for the graphs of one computation, which are captured in the block, on one stream.

    Operators must have run on the stream before, to allocate and to choose algorithms. The graphs share a
    pool of memory, because they are replayed in the order in which they are captured. Torch's default stream
    for captures belongs to the device that captured first, so it may be another GPU's. Other threads may use
    CUDA meanwhile, as a loader's that pins memory does.
    """
    pool = torch.cuda.graph_pool_handle()
    # The workspaces of cuBLAS then come from the pool. Other code, such as a graph that is deleted, frees
    # those of the stream, and a replay would write to memory that is not its own.
    torch._C._cuda_clearCublasWorkspaces()
    try:
        with _no_garbage_collection():
            yield {"pool": pool, "stream": stream, "capture_error_mode": ERROR_MODE}
    except RuntimeError:
        _recover(pool)
        raise


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep garbage, which may contain other graphs: the end of one would end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
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


WARM_UP = 3  # runs before a capture, as PyTorch advises, in which libraries allocate and choose algorithms


class CapturedPass:
    """A backward pass as a CUDA graph; `options` say where it is captured."""

    def __init__(self, backward_pass: BackwardPass, options: Mapping[str, Any]) -> None:
        self.objectives = [each.detach() for each in backward_pass.objectives]
        self._head_gradients, self._are_ones = ones_like(self.objectives), True
        self._graph = torch.cuda.CUDAGraph()
        gradients = unshared(lambda: backward_pass.gradients(self._head_gradients), self._head_gradients)
        with torch.cuda.graph(self._graph, **options):
            self._gradients = gradients()  # which may be changed in place

    def gradients(self, head_gradients: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Return the gradients of the leaves, which the next call overwrites."""
        if head_gradients is not None:
            torch._foreach_copy_(self._head_gradients, list(head_gradients))
        elif not self._are_ones:
            for each in self._head_gradients:
                each.fill_(1)
        self._are_ones = head_gradients is None
        self._graph.replay()
        return self._gradients


class CudaGraphs:
    """A computation for one form of arguments; a replay overwrites the values of the one before."""

    def __init__(self, computation: Computation, given: Mapping[str, torch.Tensor]) -> None:
        self._arguments = {name: given[name].detach().clone() for name in computation.inputs}
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    _warm_up(computation, self._arguments)
        finally:
            current.wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with capturing(stream) as options:
            with torch.cuda.graph(self._graph, **options):
                computed = computation.run(self._arguments)
            passes = [CapturedPass(each, options) for each in computed.backward_passes]
        values = {name: each.detach() for name, each in computed.values.items()}
        self._computed = Computed(values, passes, computed.copies, captured=True)

    def replay(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Compute; the values require no gradients."""
        arguments = [given[name] for name in self._arguments]
        torch._foreach_copy_([*self._arguments.values()], arguments)
        self._graph.replay()
        return self._computed


def _warm_up(computation: Computation, arguments: Mapping[str, torch.Tensor]) -> None:
    """Run a computation once; in a function, so that its autograd graph is freed before the capture."""
    for backward_pass in computation.run(arguments).backward_passes:
        backward_pass.gradients()


MAX_GRAPHS = 32  # of a program; each holds the memory of a step
FREE = 0.5  # of the GPU's memory must be free, for a graph keeps the memory of its step


class CudaGraphRunner:
    """Calls a computation as CUDA graphs, for each form of arguments.

    Python launches a graph about as fast as a single operator. The first call with a form runs operator by
    operator; the second one is captured, if there is memory or the user requested it. If a capture fails,
    from then on all forms run operator by operator.
    """

    def __init__(self, computation: Computation, mode: CompileMode) -> None:
        self._computation, self._mode, self._captures = computation, mode, True
        self._seen: set[Hashable] = set()
        self._by_form: dict[Hashable, CudaGraphs | None] = {}  # None for forms that run operator by operator

    def __call__(self, given: Mapping[str, torch.Tensor]) -> Computed:
        """Replay the graphs of the arguments' form, or run operator by operator if it has none."""
        graphs = self._find(given) if self._captures else None
        return self._computation.run(given) if graphs is None else graphs.replay(given)

    def _find(self, given: Mapping[str, torch.Tensor]) -> CudaGraphs | None:
        arguments = [given[name] for name in self._computation.inputs]
        form = torch.is_grad_enabled(), *((each.shape, each.dtype) for each in arguments)
        if form in self._seen and form not in self._by_form:
            self._by_form[form] = self._capture(given, arguments[0].device)
        self._seen.add(form)
        return self._by_form.get(form)

    def _capture(self, given: Mapping[str, torch.Tensor], device: torch.device) -> CudaGraphs | None:
        """Return graphs for a form of arguments; None if they cannot be captured."""
        if len(self._by_form) >= MAX_GRAPHS:
            return None
        if not (self._mode.requested or _has_room(device)):
            self._mode.log("a program is not captured as CUDA graphs: half of the GPU's memory is in use")
            return None
        # a capture that fails leaves its own stream as the current one
        same_stream = torch.cuda.stream(torch.cuda.current_stream(device))
        try:
            with _undone(self._computation, device), torch.cuda.device(device), same_stream:
                return CudaGraphs(self._computation.on_aliases(), given)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]  # the lines after that say how to debug CUDA
            self._mode.log(f"a program cannot be captured as CUDA graphs: {why}")
            self._captures = False
            self._by_form.clear()  # also those of other forms, for memory may be what is missing
            return None


@contextmanager
def _undone(computation: Computation, device: torch.device) -> Iterator[None]:
    """Restore buffers, such as running statistics, and random numbers after the block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), restored(computation.buffers):
        yield


def _has_room(device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    # of what torch has reserved, a step operator by operator still needs as much as it has used at most
    unused = torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return free + unused >= FREE * total


def runner_of(
    computation: Computation, waiting: Sequence[str], mode: CompileMode
) -> Callable[[Mapping[str, torch.Tensor]], Computed]:
    """Return what runs a computation; `waiting` are its operators that wait for the device."""
    if not mode.captures:
        return computation.run
    if waiting:
        mode.log(f"{', '.join(waiting)} cannot be captured as CUDA graphs: it waits for the device")
        return computation.run
    return CudaGraphRunner(computation, mode)
