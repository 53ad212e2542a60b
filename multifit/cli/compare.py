"""``multifit compare RUN… --baseline RUN…``: Δm, how much better than nets for single tasks."""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ..handlers.delta_m import baseline_values, delta_m, read_figures
from ..handlers.history import figure_text
from ..utils.tables import table
from ..utils.text import quoted
from .common import print_result
from .taskfile import as_usage_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    runs: Any = {"metavar": "RUN", "nargs": "+", "type": Path}
    parser.add_argument("folders", help="folder of a run, or of its seeds", **runs)
    text = "runs of single tasks, by train --only (default: all tasks of the first run)"
    parser.add_argument("--baseline", default=[], help=text, **runs)
    text = "the figures to compare (default: of each task the first metric, without one the loss)"
    parser.add_argument("--figure", metavar="NAME", nargs="+", default=[], help=text)


def run(options: argparse.Namespace) -> None:
    """Print each task's figure after the last epoch, and Δm, with standard deviations over the seeds."""
    with as_usage_error(ValueError):
        runs = [read_figures(folder) for folder in options.folders]
        singles = [read_figures(folder) for folder in options.baseline] or runs[:1]
        single = baseline_values(singles, options.figure or (() if options.baseline else runs[0].tasks))
        values = {each.name: [each.values(figure) for figure in single] for each in runs}
        known = {figure for each in singles for figure in each.seeds[0]}
        tasks = [] if options.figure else [name for each in runs for name in each.tasks]
        if lacking := dict.fromkeys(name for name in tasks if name not in known):
            raise ValueError(f"no baseline has {quoted(lacking)}: give runs of these tasks, too")
    baseline = [fmean(each) for each in single.values()]
    more = [runs[0].directions[figure] == "max" for figure in single]
    changes = {name: delta_m(np.transpose(each), baseline, more).tolist() for name, each in values.items()}
    rows = [["baseline", *map(_text, single.values())]] if options.baseline else []
    rows += [[name, *map(_text, values[name]), _text(change, "+.1f")] for name, change in changes.items()]
    print_result("\n".join([table(["run", *single, "Δm in %"], rows, 200), "", *_words(changes)]))


def _text(values: Sequence[float], form: str = "") -> str:
    mean = round(fmean(values), 1) + 0.0 if form else fmean(values)  # no -0.0
    return figure_text(mean, stdev(values) if len(values) > 1 else math.nan, form)


def _words(changes: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield whether the best run differs from each other one by more than twice its standard error."""
    best = max(changes, key=lambda name: fmean(changes[name]))
    for name, values in changes.items():
        if len(values) == 1:
            yield f"{name} has one seed, which has no spread: train it with --seeds 3"
        elif name != best and len(changes[best]) > 1:
            gap, both = fmean(changes[best]) - fmean(values), (values, changes[best])
            error = math.sqrt(sum(stdev(each) ** 2 / len(each) for each in both))
            how = "more than" if gap > 2 * error else "within"
            yield f"{best} is {gap:.1f} points above {name}: {how} the spread of the seeds"
