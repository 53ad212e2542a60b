"""Run programs as CUDA graphs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Hashable, Iterator, Mapping, Sequence

import torch

from .compile_mode import CompileMode
from .computation import Computation, Computed
from .cuda_graphs import CudaGraphs
from .tensors import restored

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
