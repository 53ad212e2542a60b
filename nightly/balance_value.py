"""What methods of balancing are worth: beside the sum of the losses, and nets for single tasks.

``python -m nightly.balance_value [--problem NAME …] [--method NAME …] [--seeds N] [--epochs N]`` writes
``runs/nightly/balance.md``. A figure is the mean over the seeds, of validation data after the last epoch. The
last column, Δm, is the mean over the tasks of the change against single-task nets, relative and with the sign
that makes more better; and its standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from multifit import (
    LabelSpec,
    LoggingHandler,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    ProgressBar,
    TaskSpec,
    TrainerSpec,
    balance,
)
from multifit.files import atomic_write
from multifit.tables import table
from multifit.taskfile import TaskFile

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

__all__ = ["METHODS", "PROBLEMS", "Problem", "delta_m", "main", "measured", "written"]

SINGLE, SUM = "single-task nets", "sum of losses"
METHODS = (
    "Uncertainty", "DWA", "RLW", "GLS", "IMTLL", "FAMO", "GradNorm", "PCGrad", "MGDA", "CAGrad", "IMTLG",
    "FairGrad", "AlignedMTL", "UPGrad", "DualProj", "ConFIG",
)  # fmt: skip
MISSING = 0.4  # the share of the diabetes labels that are left out


class Problem(NamedTuple):
    """Tasks on one net.

    Attributes
    ----------
    figures : mapping of str to (str, bool)
        The validation figure of each task, and whether more of it is better.
    epochs : int
        The number of epochs.
    fitted : callable
        ``fitted(seed, epochs, method, only)`` trains with a method's name, or None for the sum, and one task
        alone if `only` names it; returns the history.
    """

    figures: Mapping[str, tuple[str, bool]]
    epochs: int
    fitted: Callable[[int, int, str | None, str], Mapping[str, Sequence[float]]]


def two_digits(seed: int, epochs: int, method: str | None, only: str) -> Mapping[str, Sequence[float]]:
    """Train ``tasks/two_digits.py``."""
    file = TaskFile(Path(__file__).parents[1] / "tasks" / "two_digits.py")
    file.set([f"method={method or ''}", f"only={only}"])
    task = file.module
    return _fitted(task.net, task.spec(), task.trainers(None), task.data, task.balance, seed, epochs)


def diabetes(seed: int, epochs: int, method: str | None, only: str) -> Mapping[str, Sequence[float]]:
    """Predict how diabetes goes on, and body mass, blood pressure and a blood value; labels are missing."""
    tasks = [only] if only else list(DIABETES.figures)
    spec = TaskSpec(
        inputs=["x"],
        outputs=[f"{task}_out" for task in tasks],
        labels=[LabelSpec(task, missing="nan") for task in DIABETES.figures],
        losses={task: LossSpec(gluon.loss.L2Loss(), f"{task}_out", task) for task in tasks},
        metrics={f"{task}_error": MetricSpec(mx.metric.MAE(), f"{task}_out", task) for task in tasks},
        unused=[task for task in DIABETES.figures if task not in tasks],
    )
    make = getattr(balance, method) if method else lambda: None
    trainer = TrainerSpec(".*", "adam", {"learning_rate": 3e-3})
    return _fitted(lambda: _Heads(len(tasks)), spec, trainer, _diabetes_data, make, seed, epochs)


class _Heads(nn.HybridBlock):
    """A dense body, and a number for each task."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.body, self.heads = nn.Dense(32, activation="tanh"), nn.HybridSequential()
        self.heads.add(*(nn.Dense(1) for _ in range(tasks)))
        self.hybridize()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        outputs = [head(self.body(x)) for head in self.heads]
        return outputs if len(outputs) > 1 else outputs[0]


def _diabetes_data() -> tuple[Any, Any]:
    """Return loaders of seven features and four standardised labels, of which some are NaN in training."""
    from sklearn.datasets import load_diabetes

    values, target = load_diabetes(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(values))
    labels = np.stack([target, values[:, 2], values[:, 3], values[:, 8]], axis=1)[order]  # bmi, bp, s5
    features = np.delete(values, [2, 3, 8], axis=1)[order]
    features, labels = ((a - a.mean(axis=0)) / a.std(axis=0) for a in (features, labels))
    train, val = np.s_[:332], np.s_[332:]
    labels[train][np.random.RandomState(1).rand(332, 4) < MISSING] = np.nan
    columns = [features, *(labels[:, i : i + 1] for i in range(4))]
    sets = [gluon.data.ArrayDataset(*(c[part].astype("float32") for c in columns)) for part in (train, val)]
    return gluon.data.DataLoader(sets[0], 32, shuffle=True), gluon.data.DataLoader(sets[1], 32)


def _fitted(
    make_net: Any, spec: Any, trainer: Any, data: Any, make: Any, seed: int, epochs: int
) -> Mapping[str, Sequence[float]]:
    np.random.seed(seed)
    mx.random.seed(seed)
    train, val = data()
    net = make_net()
    net.initialize(mx.init.Xavier())
    quiet = [LoggingHandler(figures=()), ProgressBar(enabled=False)]
    return MultiEstimator(net, spec, trainer, balance=make()).fit(train, val, epochs, event_handlers=quiet)


DIABETES = Problem(
    {name: (f"val_{name}_error", False) for name in ("progression", "mass", "pressure", "s5")}, 60, diabetes
)
PROBLEMS = {
    "two digits": Problem(
        {
            "left": ("val_left_accuracy", True),
            "right": ("val_right_accuracy", True),
            "sum": ("val_sum_error", False),
        },
        12,
        two_digits,
    ),
    "diabetes": DIABETES,
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
