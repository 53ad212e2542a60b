"""``multifit tasks FILE``: which tasks pull together and which apart, after a few batches."""

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from ..balance import Sum
from ..errors import DataError, SpecError, counted
from ..estimator import MultiEstimator
from ..handlers import LoggingHandler, ProgressBar
from ..tables import table
from .common import add_task_arguments, count, print_result, quiet
from .task import Choices, Task

APART = -0.1  # tasks whose mean cosine is below this are said to pull apart
LONGER = 3.0  # a gradient that is more than this many times as long is said to outweigh the other


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument("--batches", type=count, default=50, help="number of batches (default: 50)")


def run(options: argparse.Namespace) -> int:
    """Train what the file declares, without its balance, and print the gradients' figures.

    Returns 0, or 130 if Ctrl-C ended the training early.
    """

    def estimator(net: Any, spec: Any, trainers: Any, initializer: Any, frozen: Any) -> MultiEstimator:
        return task.make_estimator(net, spec, trainers, initializer, frozen, Sum())

    with quiet(True):
        task = Task(Choices(options), {"estimator": estimator, "history": lambda: None})
        handlers = [LoggingHandler(), ProgressBar(enabled=False if options.quiet else None)]
        limits = {"batches": options.batches, "sampling": task.results["sampling"]}
        try:
            history = task.estimator.fit(task.data[0], event_handlers=handlers, **limits)
        except (SpecError, DataError) as error:
            error.at("multifit tasks sets balance= itself, to compare gradients")
            raise
    figures = {name: values[-1] for name, values in history.items()}
    names = [name[len("train_weight_") :] for name in figures if name.startswith("train_weight_")]
    print_result(_text(names, figures, task.estimator.state.step))
    return 130 if task.estimator.state.interrupted else 0


def _text(names: Sequence[str], figures: Mapping[str, float], batches: int) -> str:
    norms = {name: figures[f"train_gradnorm_{name}"] for name in names}
    cosines = {pair: figures[f"train_cosine_{pair[0]}_{pair[1]}"] for pair in combinations(names, 2)}
    total = sum(norm for norm in norms.values() if norm > 0) or 1.0
    rows = [
        [
            name,
            _number(norms[name], ".3g"),
            _number(norms[name] / total, ".0%"),
            *(_cosine(cosines, name, o) for o in names),
        ]
        for name in names
    ]
    title = f"gradients where the tasks branch, mean of {counted(batches, 'batch', 'batches')}"
    headers = ["task", "norm", "share", *(f"cosine with {name}" for name in names)]
    lines = [title, table(headers, rows), "", *_advice(norms, cosines)]
    return "\n".join(lines)


def _cosine(cosines: Mapping[tuple[str, str], float], one: str, other: str) -> str:
    if one == other:
        return "1"
    return _number(cosines[(one, other) if (one, other) in cosines else (other, one)], ".2f")


def _number(value: float, form: str) -> str:
    """Return a number as text; a dash if it was not measured."""
    return "-" if math.isnan(value) else format(value, form)


def _advice(norms: Mapping[str, float], cosines: Mapping[tuple[str, str], float]) -> list[str]:
    lines = [
        f"{one} and {other} pull apart: try a method that compares gradients, such as UPGrad"
        for (one, other), cosine in cosines.items()
        if cosine < APART
    ]
    lines += [f"{name} had no gradient in any batch" for name, norm in norms.items() if math.isnan(norm)]
    ordered = sorted((name for name in norms if norms[name] > 0), key=norms.__getitem__)
    if ordered and norms[ordered[-1]] > LONGER * norms[ordered[0]]:
        lines.append(
            f"{ordered[-1]} outweighs {ordered[0]}: try weights, or a method that scales, such as GradNorm"
        )
    return lines or ["no two tasks pull apart, and none outweighs another: the sum of the losses will do"]
