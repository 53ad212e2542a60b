"""What methods of balancing are worth, compared with the sum of the losses and with nets for single tasks.

``python -m nightly.balance_value [--problem NAME …] [--method NAME …] [--seeds N] [--epochs N]`` writes
``runs/nightly/balance.md``. Every method of gradients is tried on features and on parameters, and with
gradients scaled to equal length. Figures are measured on validation data after the last epoch. Δm is the
relative change of a figure against the mean of the single-task nets, as the mean over the tasks, and given
as mean ± standard deviation over the seeds. Its sign is such that more is better. Each fit's figures are kept
in ``runs/nightly/balance/``: what was stopped goes on where it was.
"""

import argparse
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multifit import LoggingHandler, MultiEstimator, ProgressBar, balance
from multifit.cli.taskfile import TaskFile
from multifit.handlers.delta_m import delta_m
from multifit.utils.files import atomic_write
from multifit.utils.tables import table

import mxnet as mx  # isort: skip

__all__ = ["METHODS", "PROBLEMS", "Problem", "main", "measured", "written"]

SINGLE, SUM = "single-task nets", "sum of losses"
METHODS = (
    "Uncertainty", "DWA", "RLW", "GLS", "IMTLL", "STCH", "FAMO", "GradNorm", "PCGrad", "MGDA", "CAGrad",
    "IMTLG", "FairGrad", "AlignedMTL", "UPGrad", "DualProj", "ConFIG",
)  # fmt: skip
FORMS = {  # of methods of gradients
    "features": {"on": "features"},
    "features, normalized": {"on": "features", "normalize": True},
    "parameters": {"on": "parameters"},
    "parameters, normalized": {"on": "parameters", "normalize": True},
}
OF_LOSSES = "losses"  # the form of all others

Values = Mapping[tuple[str, str], np.ndarray]
"""The figures of each contender, a method in a form, of shape (seeds, tasks)."""


class Problem(NamedTuple):
    """Tasks on one net, which a file in ``tasks/`` declares.

    Attributes
    ----------
    task : str
        The file, without ``.py``.
    settings : str
        Further settings, separated by spaces.
    epochs : int
        The number of epochs.
    figures : mapping of str to (str, bool)
        The validation figure of each task, and whether more of it is better.
    forms : sequence of str
        The forms in which methods of gradients can be tried.
    rounds : mapping of str to int
        How often a single task's loader is read in an epoch of all tasks, if that is not once.
    """

    task: str
    settings: str
    epochs: int
    figures: Mapping[str, tuple[str, bool]]
    forms: Sequence[str] = tuple(FORMS)
    rounds: Mapping[str, int] = {}

    def fitted(self, seed: int, epochs: int, method: Any, only: str) -> Mapping[str, Sequence[float]]:
        """Train with a method, or the sum of the losses if it is None; only one task if `only` names it."""
        file = TaskFile(Path(__file__).parents[1] / "tasks" / f"{self.task}.py")
        file.set(self.settings.split())
        task: Any = file.module
        np.random.seed(seed)
        mx.random.seed(seed)
        train, val = task.data()
        spec, sampling = task.spec(), getattr(task, "sampling", lambda: None)()
        if only:
            spec, method, sampling = spec.only(only), None, None
            train = {only: train[only]} if isinstance(train, dict) else train
        net = task.net()
        net.initialize(task.initializer())
        estimator = MultiEstimator(net, spec, task.trainers(), balance=method)
        quiet = [LoggingHandler(figures=()), ProgressBar(enabled=False)]
        epochs *= self.rounds.get(only, 1)
        return estimator.fit(train, val, epochs, event_handlers=quiet, sampling=sampling)


# The digits' tasks compete for a small body. The patients' tasks can help each other: each has few labels,
# and none of them follows from the other measures, as the lipids nearly do. The third problem has a loader
# for each task: no sample has the labels of both, so that there are no features to compare.
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
    "few digits": Problem(
        "few_digits",
        "joint=True",
        8,
        {name: (f"val_{name}_accuracy", True) for name in ("digit", "parity")},
        ("parameters", "parameters, normalized"),
        {"digit": 22},
    ),
}


def measured(
    problem: Problem,
    methods: Sequence[str],
    seeds: int,
    epochs: int | None = None,
    folder: Path | None = None,
) -> Values:
    """Return the figures of each contender; `folder` keeps those of each fit."""
    epochs = epochs or problem.epochs

    def figures(seed: int, name: str, form: str) -> list[float]:
        kept = folder and folder / f"{problem.task}-{epochs}-{seed}-{name}-{form}.json".replace(" ", "_")
        if kept and kept.exists():
            return list(json.loads(kept.read_text()))
        wanted = [(task, figure) for task, (figure, _) in problem.figures.items()]
        if name == SINGLE:
            values = [problem.fitted(seed, epochs, None, task)[figure][-1] for task, figure in wanted]
        else:
            method = None if name == SUM else getattr(balance, name)(**FORMS.get(form, {}))
            history = problem.fitted(seed, epochs, method, "")
            values = [history[figure][-1] for _, figure in wanted]
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(kept, json.dumps(values))
        return values

    contenders = [(SINGLE, OF_LOSSES), (SUM, OF_LOSSES)]
    for name in methods:
        of_gradients = issubclass(getattr(balance, name), balance.GramianMethod)
        contenders += [(name, form) for form in (problem.forms if of_gradients else [OF_LOSSES])]
    return {each: np.array([figures(seed, *each) for seed in range(seeds)]) for each in contenders}


def written(name: str, problem: Problem, values: Values) -> str:
    """Return the tables of one problem: the figures without a method, and Δm in % of every contender."""
    better = [more for _, more in problem.figures.values()]
    single = values[SINGLE, OF_LOSSES]

    def change(each: np.ndarray | None) -> str:
        if each is None:
            return ""
        percent = delta_m(each, np.mean(single, axis=0), better)
        return f"{percent.mean():+.1f}" + (f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else "")

    def rows() -> Iterator[list[str]]:
        for method in dict.fromkeys(method for method, _ in values):
            yield [method, *(change(values.get((method, form))) for form in (OF_LOSSES, *problem.forms))]

    plain = [
        [method, *(f"{mean:.3f}" for mean in values[method, OF_LOSSES].mean(axis=0))]
        for method in (SINGLE, SUM)
    ]
    figures = table(["", *(figure for figure, _ in problem.figures.values())], plain, 200)
    changes = table(["Δm in %", OF_LOSSES, *problem.forms], list(rows()), 200)
    return f"{name}, {len(single)} seeds\n\n{figures}\n\n{changes}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description="What methods of balancing are worth.")
    parser.add_argument("--problem", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--method", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--epochs", type=int, help="default: as many as the problem needs")
    parser.add_argument("--output", default="runs/nightly", help="the folder of balance.md")
    options = parser.parse_args(arguments)
    logging.getLogger("multifit").setLevel(logging.ERROR)
    folder, texts = Path(options.output), []
    for name in options.problem:
        problem = PROBLEMS[name]
        values = measured(problem, options.method, options.seeds, options.epochs, folder / "balance")
        texts.append(written(name, problem, values))
        print(texts[-1], flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"```text\n{text}```\n" for text in texts)
    atomic_write(folder / "balance.md", f"# What balancing is worth\n\n{body}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
