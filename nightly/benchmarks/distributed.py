"""Two processes that train together, compared with two that train independently on the same cores.

Both kinds take turns in the same two processes, fit by fit. Sums of arrays are measured too.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mxnet as mx

from multifit import MultiEstimator
from multifit.distributed import ALONE, World, connect
from multifit.gluon.ranks.collectives import all_reduce
from tests.common.launch import launch

from .results import OURS, Row
from .subjects import SINGLES, Subject
from .subjects.data import digit_batches

__all__ = ["CASES", "NAME", "measure"]

NAME = "distributed"
SIZE = 2
ROUNDS = 5
EPOCHS = 3  # of a fit, so that how it starts counts little
LIMIT = 1800.0  # seconds
MEGABYTES = (1, 10, 45)
RESNET = next(subject for subject in SINGLES if subject.name == "ResNet18 thumbnail")


def _large_batches() -> list[tuple[Any, Any]]:
    """Return batches of 256 samples."""
    images, kinds = (mx.nd.concat(*arrays, dim=0) for arrays in zip(*digit_batches(32, 16)))
    return [(images[i : i + 256], kinds[i : i + 256]) for i in range(0, 1024, 256)]


NETS = (
    RESNET,
    replace(RESNET, name=f"{RESNET.name}, 256 samples", batches=_large_batches),
)
SUBJECTS = {subject.name: subject for subject in NETS}
COSTS = "sums"


@dataclass(frozen=True)
class Case:
    """What two processes do, and the library that connects them."""

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.what}, {self.kind}"


CASES = tuple(Case(kind, what) for kind in ("torch", "horovod") for what in (*SUBJECTS, COSTS))


def measure(case: Case, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per batch of both processes, or of sums; nothing if not installed."""
    if find_spec(case.kind) is None:
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        command = ("-m", __spec__.name, case.kind, case.what, str(epochs or ROUNDS), str(path))
        job = launch(case.kind, SIZE, *command, limit=LIMIT)
        if job.code:
            raise RuntimeError("\n".join(job.outputs))
        seconds = json.loads(path.read_text())
    if case.what == COSTS:
        for name, values in seconds.items():
            yield Row.of_seconds(NAME, f"{case.kind}: {name}", {OURS: values})
    else:
        yield Row.of_seconds(NAME, str(case), seconds, EPOCHS * len(SUBJECTS[case.what].batches()))


def _trainings(subject: Subject, world: World) -> dict[str, Callable[[], Any]]:
    """Return a fit of both processes together, whose batches are twice as large, and of each alone."""
    own = subject.batches()
    both = [tuple(mx.nd.concat(*[array] * SIZE, dim=0) for array in batch) for batch in own]

    def fit(world: World, batches: Any) -> Callable[[], Any]:
        net = subject.net()
        estimator = MultiEstimator(net, subject.spec(net), subject.trainers(net), world=world)
        estimator.logger.setLevel("ERROR")
        return lambda: estimator.fit(batches, epochs=EPOCHS)

    return {OURS: fit(world, both), "independent processes": fit(ALONE, own)}


def _costs(world: World) -> dict[str, Callable[[], Any]]:
    def summing(megabytes: float) -> Callable[[], None]:
        arrays = [mx.nd.zeros(int(megabytes * 2**20 / 4 / 10)) for _ in range(10)]

        def sum_and_wait() -> None:
            all_reduce(world, arrays)
            mx.nd.waitall()

        return sum_and_wait

    sums = {f"sum of {megabytes} MB": summing(megabytes) for megabytes in MEGABYTES}
    return {"sum of a number": lambda: world.sum(1.0), **sums}


def _timed(world: World, function: Callable[[], Any], count: int) -> float:
    """Return the seconds of the slowest rank for one call."""
    world.sum(0)
    begun = time.perf_counter()
    for _ in range(count):
        function()
    mx.nd.waitall()
    return float(max(world.gather((time.perf_counter() - begun) / count)))


def main(kind: str, what: str, rounds: str, path: str) -> None:
    """Measure in one of the processes; the first one writes the seconds."""
    world = connect(kind)
    turns, count = (_costs(world), 20) if what == COSTS else (_trainings(SUBJECTS[what], world), 1)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for round_ in range(int(rounds) + 2):
        for name, function in turns.items():
            taken = _timed(world, function, count)
            if round_ >= 2:  # the first two warm up
                seconds[name].append(taken)
    if world.first:
        Path(path).write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
