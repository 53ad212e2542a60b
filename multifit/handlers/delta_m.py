"""Δm: how much better several tasks are than nets for single tasks, in the mean.

A run is a folder that ``multifit train`` wrote, or the folder of its ``--seeds``. Its figures are those after
the last epoch, as in all tables.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..utils.arguments import PathLike, Valid, all_positive, checked_value
from ..utils.files import read_json
from ..utils.protocols import MultiEstimator
from ..utils.text import quoted, reason, suggest
from .handler import Handler, Priority
from .history import History, seed_folders

DELTA_M = "delta_m"  # the figure, in percent
_Values = Annotated[
    Mapping[str, float],
    Valid('a dict of positive numbers, such as {{"val_accuracy": 0.9}}', all_positive),
]


def delta_m(values: Any, baseline: Any, more_is_better: Sequence[bool]) -> Any:
    """Return Δm of each seed in percent: the mean relative change against the baseline; more is better.

    `values` are figures of shape (seeds, tasks), and `baseline` (tasks,) those of nets for single tasks.
    """
    signs = np.where(more_is_better, 100.0, -100.0)
    return (signs * (np.asarray(values) / baseline - 1)).mean(axis=1)


class RunFigures(NamedTuple):
    """What can be compared of a run."""

    name: str
    seeds: list[dict[str, float]]  # the figures of each seed
    directions: Mapping[str, str]  # "min" or "max" by figure, where known
    tasks: list[str]  # the figure that says most of each task
    only: list[str]  # the tasks that were trained; empty for all

    def values(self, figure: str) -> list[float]:
        """Return a figure of each seed; raises ValueError if it cannot be compared."""
        values = [seed.get(figure, math.nan) for seed in self.seeds]
        if not all(map(math.isfinite, values)):
            near, known = suggest(figure, self.seeds[0]), quoted(self.seeds[0])
            raise ValueError(f'{self.name} has no number for "{figure}"{near}; its figures are {known}')
        if figure not in self.directions:
            raise ValueError(f'is more of "{figure}" better, or less? Give its MetricSpec a mode=')
        return values


def read_figures(folder: Path) -> RunFigures:
    """Return the figures of a run; raises ValueError if it is none, or has not ended."""
    seeds, kinds = [], []
    for each in seed_folders(folder) or [folder]:
        try:
            seeds.append(History.from_json(each / "history.json").last)
            record = read_json(each / "settings.json")
            directions, tasks, only = record["directions"], record["tasks"], record.get("only", [])
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{each} is not the folder of a run that has ended: {reason(error)}") from None
        kinds.append([record.get(name) for name in ("file", "only", "settings")])
        if kinds[-1] != kinds[0]:
            raise ValueError(f"{each} is not a seed of the same run: its file, tasks or settings differ")
    return RunFigures(str(folder), seeds, directions, tasks, only)


def baseline_values(runs: Sequence[RunFigures], figures: Collection[str] = ()) -> dict[str, list[float]]:
    """Return the values of single tasks by figure: the first one of each run's, or those of `figures`.

    Runs with the same figure are seeds of one task. Raises ValueError for a run without a figure, for runs of
    different tasks with the same one, and for a figure without a run, or whose mean is not positive.
    """
    single: dict[str, list[float]] = {figure: [] for figure in figures}
    owners: dict[str, RunFigures] = {}
    for run in runs:
        own = [figure for figure in figures if figure in run.seeds[0]] if figures else run.tasks[:1]
        if not own:
            what = quoted(figures) if figures else "validation figure of which more or less is better"
            raise ValueError(f"{run.name} has no {what}; its figures are {quoted(run.seeds[0])}")
        for figure in own:
            if owners.setdefault(figure, run).only != run.only:
                raise ValueError(
                    f'{owners[figure].name} and {run.name} train different tasks, but both have "{figure}": '
                    "give one of them, or name figures that tell the tasks apart"
                )
            single.setdefault(figure, []).extend(run.values(figure))
    for figure, values in single.items():
        if not values or np.mean(values) <= 0:
            found = f"{np.mean(values):.4g}, but must be above 0" if values else "missing"
            raise ValueError(f'the baseline of "{figure}" is {found}: give other runs, or name other figures')
    return single


class DeltaM(Handler):
    """Records Δm as the figure ``delta_m`` after each epoch, for ``monitor="delta_m"``.

    Δm is the mean over the tasks of the relative change of a task's validation figure against a net for this
    task alone, in percent, and such that more is better. It is NaN where a figure was not measured.

    Parameters
    ----------
    *baseline : path or mapping of str to float
        Runs of single tasks, written by ``multifit train --only`` or ``fit(output=)``, or folders of several
        seeds. Of each, the first metric whose direction is known counts, without one the loss: the mean over
        seeds after the last epoch. Or values by figure: ``{"val_left_accuracy": 0.95, "val_right": 0.2}``.

    Raises
    ------
    ValueError
        A folder is not that of a run that has ended, or a value is not positive. A fit raises it too if it
        has no such figure, or if it is not known whether more of it is better.

    References
    ----------
    K.-K. Maninis, I. Radosavovic, I. Kokkinos: Attentive Single-Tasking of Multiple Tasks. CVPR 2019.
    """

    priority = Priority.VALIDATION + 1  # before those that monitor it

    def __init__(self, *baseline: PathLike | Mapping[str, float]) -> None:
        given = [checked_value("DeltaM: baseline", each, PathLike | _Values) for each in baseline or [None]]
        runs = [read_figures(Path(each)) for each in given if not isinstance(each, Mapping)]
        self.baseline = {name: float(np.mean(each)) for name, each in baseline_values(runs).items()}
        for each in given:
            self.baseline |= each if isinstance(each, Mapping) else {}
        self.monitor = list(self.baseline)  # so that a fit checks them

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Record the epoch's Δm."""
        values = [estimator.history.last.get(figure, math.nan) for figure in self.baseline]
        more = [estimator.direction(figure) == "max" for figure in self.baseline]
        change = delta_m([values], list(self.baseline.values()), more)
        estimator.history.record({DELTA_M: float(change[0])})
