"""What methods of balancing are worth, compared with the sum of the losses and with nets for single tasks.

``python -m nightly.balance_value [--problem NAME …] [--method NAME …] [--seeds N] [--epochs N]`` writes
``runs/nightly/balance.md``. Figures are measured on validation data after the last epoch, and are means over
the seeds. The last column, Δm, is the relative change of a figure against the single-task net, as the mean
over the tasks, with its standard deviation over the seeds. The sign of Δm is such that more is better.
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multifit import (
    LoggingHandler,
    MultiEstimator,
    ProgressBar,
)
from multifit.files import atomic_write
from multifit.tables import table
from multifit.taskfile import TaskFile

import mxnet as mx  # isort: skip

__all__ = ["METHODS", "PROBLEMS", "Problem", "delta_m", "main", "measured", "written"]

SINGLE, SUM = "single-task nets", "sum of losses"
METHODS = (
    "Uncertainty", "DWA", "RLW", "GLS", "IMTLL", "FAMO", "GradNorm", "PCGrad", "MGDA", "CAGrad", "IMTLG",
    "FairGrad", "AlignedMTL", "UPGrad", "DualProj", "ConFIG",
)  # fmt: skip


class Problem(NamedTuple):
    """Tasks on one net, which a file in ``tasks/`` declares.

    Attributes
    ----------
    task : str
        The file, without ``.py``. It has the settings `method` and `only`.
    settings : str
        Further settings, separated by spaces.
    epochs : int
        The number of epochs.
    figures : mapping of str to (str, bool)
        The validation figure of each task, and whether more of it is better.
    """

    task: str
    settings: str
    epochs: int
    figures: Mapping[str, tuple[str, bool]]

    def fitted(self, seed: int, epochs: int, method: str | None, only: str) -> Mapping[str, Sequence[float]]:
        """Train with a method, or the sum of the losses if it is None; only one task if `only` names it."""
        file = TaskFile(Path(__file__).parents[1] / "tasks" / f"{self.task}.py")
        file.set([*self.settings.split(), f"method={method or ''}", f"only={only}"])
        task = file.module
        np.random.seed(seed)
        mx.random.seed(seed)
        train, val = task.data()
        net = task.net()
        net.initialize(task.initializer())
        quiet = [LoggingHandler(figures=()), ProgressBar(enabled=False)]
        estimator = MultiEstimator(net, task.spec(), task.trainers(), balance=task.balance())
        return estimator.fit(train, val, epochs, event_handlers=quiet)


# The digits' tasks compete for a small body. The patients' tasks can help each other: each has few labels,
# and none of them follows from the other measures, as the lipids nearly do.
PROBLEMS = {
    "two digits": Problem(
        "two_digits",
        "train_count=1000",
        24,
        {
            "left": ("val_left_accuracy", True),
            "right": ("val_right_accuracy", True),
            "sum": ("val_sum_error", False),
        },
    ),
    "diabetes": Problem(
        "diabetes",
        "missing=0.6 blood=glucose",
        60,
        {name: (f"val_{name}", False) for name in ("progression", "mass", "pressure", "glucose")},
    ),
}


def measured(
    problem: Problem, methods: Sequence[str], seeds: int, epochs: int | None = None
) -> dict[str, np.ndarray]:
    """Return the figures of each contender, of shape (seeds, tasks)."""
    epochs = epochs or problem.epochs

    def figures(seed: int, method: str | None) -> list[float]:
        history = problem.fitted(seed, epochs, method, "")
        return [history[figure][-1] for figure, _ in problem.figures.values()]

    def alone(seed: int) -> list[float]:
        tasks = problem.figures.items()
        return [problem.fitted(seed, epochs, None, task)[figure][-1] for task, (figure, _) in tasks]

    contenders = {SUM: None, **{method: method for method in methods}}
    return {
        SINGLE: np.array([alone(seed) for seed in range(seeds)]),
        **{
            name: np.array([figures(seed, method) for seed in range(seeds)])
            for name, method in contenders.items()
        },
    }


def delta_m(values: np.ndarray, single: np.ndarray, more_is_better: Sequence[bool]) -> np.ndarray:
    """Return Δm of each seed: the mean relative change against the mean of the single-task nets."""
    baseline = single.mean(axis=0)
    signs = np.where(more_is_better, 1.0, -1.0)
    return np.asarray((signs * (values - baseline) / baseline).mean(axis=1))


def written(name: str, problem: Problem, values: Mapping[str, np.ndarray]) -> str:
    """Return a table of one problem."""
    better = [more for _, more in problem.figures.values()]

    def rows() -> Iterator[list[str]]:
        for contender, each in values.items():
            change = 100 * delta_m(each, values[SINGLE], better)
            spread = f" ± {change.std(ddof=1):.1f}" if len(change) > 1 else ""
            yield [
                contender,
                *(f"{mean:.3f}" for mean in each.mean(axis=0)),
                f"{change.mean():+.1f} %{spread}",
            ]

    headers = ["", *(figure for figure, _ in problem.figures.values()), "Δm"]
    return f"{name}, {len(values[SINGLE])} seeds\n\n{table(headers, list(rows()), 200)}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description="What methods of balancing are worth.")
    parser.add_argument("--problem", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--method", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="default: as many as the problem needs")
    parser.add_argument("--output", default="runs/nightly", help="the folder of balance.md")
    options = parser.parse_args(arguments)
    logging.getLogger("multifit").setLevel(logging.ERROR)
    texts = []
    for name in options.problem:
        problem = PROBLEMS[name]
        texts.append(written(name, problem, measured(problem, options.method, options.seeds, options.epochs)))
        print(texts[-1], flush=True)
    Path(options.output).mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"```text\n{text}```\n" for text in texts)
    atomic_write(Path(options.output) / "balance.md", f"# What balancing is worth\n\n{body}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
