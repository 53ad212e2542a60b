"""A training step of both engines on the CPU, compared with a loop in PyTorch on the same net.

Each contender runs in a process of its own, which trains one epoch at a time.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

from .child import Child
from .results import OURS, Row
from .rounds import Turn, alternate
from .subjects import HEADS, NMT, SINGLES, SSD, Subject

__all__ = ["CASES", "HAND", "LIMIT", "NAME", "measure", "opened", "turn_of"]

NAME, HAND = "engines", "PyTorch by hand"
WANTED = ("2 heads", "MLP", "LeNet", "ResNet18 thumbnail", "tiny FCN, mean IoU")
CASES = (
    (*(case for case in (*HEADS, *SINGLES) if case.name in WANTED), SSD, NMT) if find_spec("torch") else ()
)
CONTENDERS = {
    OURS: {"engine": "torch"},
    f"{OURS}, a module": {"engine": "module"},
    "MXNet as engine": {"engine": "mxnet"},
    HAND: {"engine": "hand"},
}
LIMIT = 120  # seconds of a case after which no round begins
# How far apart losses of the first epoch may be; rounding changes that of ResNet18 by .02 in five steps
NEAR = {"float32": 0.03, "bfloat16": 0.1}


def measure(case: Subject, epochs: int | None = None) -> Iterator[Row]:
    """Yield milliseconds per step of each contender that trains the case; PyTorch is multifit's engine."""
    with ExitStack() as stack:
        children, missing = opened(stack, case, CONTENDERS)
        for name, why in missing.items():
            print(f"{NAME}: {case}: not by {name}: {why}", flush=True)
        turns = {name: turn_of(child) for name, child in children.items()}
        times = alternate(turns, epochs or case.rounds, LIMIT)
    yield Row.of_seconds(NAME, case.name, times, len(case.batches()))


def opened(
    stack: ExitStack, case: Subject, contenders: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Child], dict[str, str]]:
    """Return the contenders' processes, which have trained an epoch, and why others are missing.

    All start at once, for imports and compilers take most of the time.
    A contender is missing if the engine refuses it, its process ends with an error, or its loss is not that
    of the loop in PyTorch.
    """

    def open_one(arguments: Mapping[str, Any]) -> tuple[Child | None, Any]:
        command = [sys.executable, "-m", "nightly.benchmarks.engine_child", case.name, json.dumps(arguments)]
        try:
            child = stack.enter_context(Child(command))
            return child, child.ask()
        except RuntimeError as error:
            return None, {"refused": " ".join(str(error).split())[-1000:]}

    children: dict[str, Child] = {}
    missing, losses = {}, {}
    with ThreadPoolExecutor(len(contenders)) as pool:
        for name, (child, answer) in zip(contenders, pool.map(open_one, contenders.values())):
            if isinstance(answer, dict):
                missing[name] = answer["refused"]
            else:
                children[name], losses[name] = child, answer[1]
    for name, loss in losses.items():
        other = losses.get(HAND, loss)
        if abs(loss - other) > NEAR[contenders[name].get("precision", "float32")] * abs(other):
            missing[name] = f"its loss is {loss:.4g} after an epoch, that of {HAND} {other:.4g}"
            del children[name]
    return children, missing


def turn_of(child: Child) -> Turn:
    """Return the turn of a contender: an epoch, by its own clock."""
    return lambda: float(child.ask()[0])
