"""One contender of one case, on one engine and device, in a process of its own: epoch by epoch on request.

``python -m nightly.benchmarks.engine_child CASE JSON``, with the arguments of :class:`Contender`.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from mxnet.gluon.loss import SigmoidBinaryCrossEntropyLoss
from torch import nn

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.utils.errors import DataError, SpecError, TrainerError

from .answering import Line
from .subjects import HEADS, LARGE, NMT, SINGLES, SSD, Subject

__all__ = ["SUBJECTS", "Contender", "idle_share", "threads_of"]

SUBJECTS: dict[str, Subject] = {str(each): each for each in (*HEADS, *SINGLES, SSD, NMT, *LARGE)}
CACHED = 2**20  # elements; smaller arrays would be in a cache if they came again
EPOCHS = 1_000_000  # the parent says when it is enough


@dataclass(frozen=True)
class Contender:
    """What trains: an engine of multifit, or a loop in PyTorch if `engine` is "hand".

    If it is "module", multifit trains the loop's net, a module, with losses and metrics of PyTorch.

    `options` are arguments of MultiEstimator, or ``compiled`` of a loop. Every epoch but the first one, whose
    loss is compared, passes over the batches until it has at least `steps` steps.
    """

    engine: str
    device: str = "cpu"
    precision: str = "float32"
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 1


class Meter:
    """Answers each request with what the epoch after it took, and counts these epochs.

    The requests are "epoch" (seconds and the training loss), "memory" (the peak of the device, in MiB) and
    "idle" (the share of the time in which the GPU computes nothing; None on a CPU). `priority` is right after
    the handler that reads the figures.
    """

    priority = -999.0

    def __init__(self, device: torch.device) -> None:
        self._device, self._gpu = device, device.type == "cuda"
        self._line, self._request = Line(), ""
        self.epochs = 0

    def greet(self) -> None:
        """Say that requests may come."""
        self._line.answer("ready")

    def begin(self) -> None:
        """Wait for a request, and exit if there are no more."""
        self._request = self._line.wait()
        if not self._request:
            raise SystemExit
        self._synchronize()
        if self._request == "memory" and self._gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        if self._request == "idle" and self._gpu:
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._profile.start()
        self._start = time.perf_counter()

    def end(self, loss: float) -> None:
        """Answer the request."""
        self._synchronize()
        seconds = time.perf_counter() - self._start
        self.epochs += 1
        self._line.answer(getattr(self, f"_{self._request}")(seconds, loss))

    def refuse(self, error: Exception) -> None:
        """Answer that the engine does not train this."""
        self._line.answer({"refused": " ".join(str(error).split())})

    def epoch_begin(self, estimator: Any) -> None:
        """Begin an epoch of a fit."""
        self.begin()

    def epoch_end(self, estimator: Any) -> None:
        """End it."""
        self.end(estimator.history["train_loss"][-1])

    def _epoch(self, seconds: float, loss: float) -> list[float]:
        return [seconds, loss]

    def _memory(self, seconds: float, loss: float) -> float | None:
        return torch.cuda.max_memory_allocated(self._device) / 2**20 if self._gpu else None

    def _idle(self, seconds: float, loss: float) -> float | None:
        if not self._gpu:
            return None
        self._profile.stop()
        on_gpu = [e for e in self._profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        kernels = [e for e in on_gpu if not e.is_user_annotation]  # PyTorch's optimizers mark whole steps
        return idle_share([(e.time_range.start, e.time_range.end) for e in kernels], 1e6 * seconds)

    def _synchronize(self) -> None:
        if self._gpu:
            torch.cuda.synchronize(self._device)


def idle_share(intervals: list[tuple[float, float]], total: float) -> float:
    """Return the share of a total time that no interval covers; they may overlap."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1 - covered / total


def main(name: str, arguments: str) -> None:
    """Train until there are no more requests."""
    case, contender = SUBJECTS[name], Contender(**json.loads(arguments))
    device = torch.device(contender.device)
    torch.set_num_threads(threads_of(device))
    meter = Meter(device)
    meter.greet()
    try:
        if contender.engine == "hand":
            _train_by_hand(case, contender, meter)
        else:
            _train(case, contender, meter)
    except (SpecError, DataError, TrainerError) as error:
        meter.refuse(error)


def threads_of(device: torch.device) -> int:
    """Return how many threads PyTorch uses: beside a GPU, one per core, to copy batches to pinned memory."""
    if device.type == "cuda":
        return len(os.sched_getaffinity(0))
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def _train(case: Subject, contender: Contender, meter: Meter) -> None:
    where = {} if contender.engine == "mxnet" else {"context": contender.device}
    options = {"precision": contender.precision, **where, **contender.options}
    batches = _Batches(case, contender.steps, meter)
    if contender.engine == "module":
        estimator = _of_module(case, **options)
    else:
        estimator = case.estimator(engine=contender.engine, **options)
    estimator.fit(batches, epochs=EPOCHS, event_handlers=meter)


def _of_module(case: Subject, **options: Any) -> MultiEstimator:
    """Return the estimator of a case's net as a module; raises SpecError if there is none."""
    from .torch_nets import torch_net

    if case.predicts not in ("classes", "pixels"):
        raise SpecError(f"what predicts {case.predicts} has no losses here but those of Gluon nets")
    gluon_net = case.net()
    spec = case.spec(gluon_net)
    binary = [isinstance(term.spec.fn, SigmoidBinaryCrossEntropyLoss) for term in spec.terms]
    metrics = {"classes": ["accuracy"], "pixels": ["pixel_accuracy", "mean_iou"]}[case.predicts]
    ours = TaskSpec(
        inputs=spec.inputs,
        outputs=spec.output_names,
        labels=spec.labels,
        losses={
            term.key: LossSpec(
                nn.BCEWithLogitsLoss() if each else nn.CrossEntropyLoss(),
                [ref.name for ref in term.outputs],
                [ref.name for ref in term.labels],
            )
            for term, each in zip(spec.terms, binary)
        },
        metrics={
            f"{term.key}_{name}": MetricSpec(
                "binary_accuracy" if each else name,
                [ref.name for ref in term.outputs],
                [ref.name for ref in term.labels],
            )
            for term, each in zip(spec.terms, binary)
            for name in metrics
        },
    )
    logging.getLogger("multifit").setLevel(logging.ERROR)
    return MultiEstimator(torch_net(gluon_net), ours, TrainerSpec(".*", *case.optimizer), **options)


class _Batches:
    """The batches of each epoch of a fit: one pass, then several, each over copies of small arrays."""

    def __init__(self, case: Subject, steps: int, meter: Meter) -> None:
        self._once, self._meter = case.batches(), meter
        passes = range(case.passes(steps))
        self._all = [
            tuple(slot.copy() if slot.size < CACHED else slot for slot in batch)
            for _ in passes
            for batch in self._once
        ]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all if self._meter.epochs else self._once)


def _train_by_hand(case: Subject, contender: Contender, meter: Meter) -> None:
    from .torch_loop import hand_written

    device = torch.device(contender.device)
    try:
        epoch = hand_written(case, device, contender.precision, **contender.options)
    except KeyError as error:
        raise SpecError(f"the net has a {error} that the loop in PyTorch does not know") from None
    while True:
        meter.begin()
        meter.end(epoch(case.passes(contender.steps) if meter.epochs else 1)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
