"""``multifit tasks FILE``: which tasks pull together and which apart, after a few batches."""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ..balance import Sum
from ..balance.balancers import ChosenParameters
from ..balance.protocol import PULL_APART
from ..balance.tasks import cosine_figure
from ..distributed import ALONE
from ..estimator import MultiEstimator
from ..handlers import LoggingHandler, ProgressBar
from ..sampling import RoundRobin
from ..spec import TaskSpec, TrainerSpec
from ..utils.errors import SpecError
from ..utils.tables import table
from ..utils.text import counted, limited, quoted
from .common import add_task_arguments, count, print_result, quiet
from .task import Choices, Task
from .task_gradients import Summary, TaskGradients
from .taskfile import UsageError

OPPOSED = 0.25  # methods have helped where the sum's step goes against a task in more than these batches
LONGER = 3.0  # a gradient that is more than this many times as long is said to outweigh the other
DIFFERENT = 0.1  # cosines of features are shown if they differ by more from those of parameters
FEATURES = "features"
METHODS = "STCH(), UPGrad(normalize=True) or IMTLG()"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument(
        "--batches", type=count, default=50, help="number of batches, of each loader (default: 50)"
    )
    parser.add_argument(
        "--on",
        metavar="parameters|features|PATTERN",
        help="compare only the gradients of parameters that tasks share, or of those that match a pattern, "
        "such as body.*; features: show the cosines of features for all pairs, not only where they differ",
    )
    parser.add_argument(
        "--affinity",
        action="store_true",
        help="also measure by how much a step on one task alone lowers the losses of the others",
    )


def run(options: argparse.Namespace) -> int:
    """Train what the file declares, without its balance, and print what its tasks do to each other.

    Returns 0, or 130 if Ctrl-C ended the training early.
    """
    refused = []
    with quiet(True):
        try:
            measured, estimator = _train(options, features=options.on in (None, FEATURES))
        except SpecError as error:
            if options.on is not None:
                raise
            measured, estimator = _train(options, features=False)  # raises again what is not about features
            refused = [f"\nfeatures were not compared: {error.problems[0].message}"]
    summary = measured.summary()
    tables = _tables(measured, summary, estimator.history.last, options.on == FEATURES)
    print_result("\n".join([*tables, *refused, "", *_advice(measured, summary)]))
    return 130 if estimator.state.interrupted else 0


def _train(options: argparse.Namespace, features: bool) -> tuple[TaskGradients, MultiEstimator]:
    """Train and measure; with `features`, the figures of gradients are recorded for these, too.

    Raises UsageError if there is nothing to compare, and SpecError if features cannot be compared.
    """
    choices = Choices(options)
    measured = TaskGradients(options.affinity, choices.seed)

    def estimator(net: Any, spec: Any, sampling: Any, trainers: Any, initializer: Any, frozen: Any) -> Any:
        loaders, balance = task.data[0], None
        joined = getattr(sampling, "joins", False)
        measured.take_turns = isinstance(loaders, Mapping) and len(loaders) > 1 and not joined
        terms = spec.terms if isinstance(spec, TaskSpec) else ()
        measured.names = list(loaders) if measured.take_turns else [term.key for term in terms]
        for problem in _problems(options, spec, measured):
            raise UsageError(f"{options.file}: {problem}")
        if not measured.take_turns:
            spec = measured.restricted(spec)
            balance = Sum(on="features") if features else None
        return task.make_estimator(net, spec, _every_batch(trainers), initializer, frozen, balance)

    task = Task(choices, {"estimator": estimator, "history": lambda: None})
    made, turns = task.estimator, measured.take_turns
    if options.on not in (None, "parameters", FEATURES):
        measured.chosen = ChosenParameters(options.on, made.parameters, ALONE).names
    made.fit(
        task.data[0],
        batches=options.batches * (len(measured.names) if turns else 1),
        sampling=RoundRobin() if turns else task.results["sampling"],
        event_handlers=[LoggingHandler(), ProgressBar(enabled=False if options.quiet else None), measured],
        seed=choices.seed,
    )
    if not measured.shared:
        what = f" that match --on {options.on}" if measured.chosen else ", or a single one had labels"
        raise UsageError(f"{options.file}: the tasks share no trained parameters{what}")
    return measured, made


def _problems(options: argparse.Namespace, spec: Any, measured: TaskGradients) -> Iterator[str]:
    """Yield why these tasks cannot be compared."""
    names = measured.names
    if options.on == FEATURES and measured.take_turns:
        yield "the loaders take turns, so no batch has features of two tasks; leave --on features out"
    if options.affinity and measured.take_turns:
        yield "--affinity needs all losses of a batch, and loaders that take turns train one each"
    if len(names) < 2:
        yield f"there is one task{f', {quoted(names)}' if names else ''}, and nothing to compare it with"
    if bound := [term.key for term in spec.terms if term.trainers] if isinstance(spec, TaskSpec) else []:
        yield (
            f"the losses {quoted(bound)} are bound to trainers: adversaries pull apart on purpose, and there "
            "is nothing to weigh"
        )
    if isinstance(spec, TaskSpec) and spec.state:
        yield (
            f"{quoted(spec.state)} is carried from batch to batch, so that each task's pass through a batch "
            "would begin with another state; compare the tasks in a training, with balance=Sum(every=50)"
        )


def _every_batch(trainers: Any) -> Any:
    """Return the trainers so that declared ones update after every batch."""
    if isinstance(trainers, Mapping):
        return {name: _every_batch(each) for name, each in trainers.items()}
    return replace(trainers, every=1, accumulate=False) if isinstance(trainers, TrainerSpec) else trainers


def _tables(
    measured: TaskGradients, summary: Summary, figures: Mapping[str, float], all_pairs: bool
) -> Iterator[str]:
    """Yield the tables; `figures` are those of the training, which has cosines of features, or has none.

    `all_pairs` says whether these are shown even if they hardly differ from those of parameters.
    """
    names, cosines = measured.names, summary.cosines
    rounds = counted(len(measured.gramians), "batch", "batches") + " of each loader" * measured.take_turns
    what = f"{counted(len(measured.shared), 'parameter')} that tasks share, mean of {rounds}"
    yield f"gradients of {what}: lengths, shares, and cosines with"
    shares = summary.lengths / (np.nansum(summary.lengths) or 1.0)
    columns = [_numbers(summary.lengths, ".3g"), _numbers(shares, ".0%"), _numbers(summary.opposed, ".0%")]
    cells = [
        [name, length, share, *_numbers(row, ".2f"), opposed]
        for name, row, length, share, opposed in zip(names, cosines, *columns)
    ]
    yield table(["task", "length", "share", *names, "opposed"], cells)
    differ = []
    for i, j in combinations(range(len(names)), 2):
        one, other = cosines[i, j], figures.get(f"train_{cosine_figure(names[i], names[j])}")
        if other is not None and (all_pairs or _differ(one, other)):
            differ.append([f"{names[i]} and {names[j]}", *_numbers([one, other], ".2f")])
    if differ:
        yield f'\na method with on="features" sees {"these" if all_pairs else "other"} cosines:'
        yield table(["tasks", "parameters", "features"], differ)
    if summary.affinity is not None:
        yield "\naffinity: by how much a step on the task of a row alone lowers the loss of each column"
        cells = [[name, *_numbers(row, "+.2%")] for name, row in zip(names, summary.affinity)]
        yield table(["step on", *names], cells)


def _differ(one: float, other: float) -> bool:
    return math.isnan(one) != math.isnan(other) or abs(one - other) > DIFFERENT


def _numbers(values: Iterable[float], form: str) -> list[str]:
    """Return numbers as texts; a dash for what was not measured."""
    return ["-" if math.isnan(value) else format(value, form) for value in values]


def _advice(measured: TaskGradients, summary: Summary) -> Iterator[str]:
    """Yield what the tasks do to each other, and what has helped then by ``nightly.balance_value``."""
    names = measured.names
    yield from (f"{n} had no gradient in any batch" for n, g in zip(names, summary.lengths) if not g > 0)
    pairs = combinations(range(len(names)), 2)
    apart = [(names[i], names[j]) for i, j in pairs if summary.cosines[i, j] < PULL_APART]
    yield from limited([f"{one} and {other} pull apart" for one, other in apart], most=10)
    against = [f"{name} in {share:.0%}" for name, share in zip(names, summary.opposed) if share > OPPOSED]
    if against:
        yield f"a step on the sum of the losses goes against {', '.join(against)} of the batches"
        yield f"try balance={METHODS}"
        if measured.take_turns:
            yield "with a batch of each loader in one update: sampling=Together(), LabelSpec(missing=...)"
    lengths = {name: length for name, length in zip(names, summary.lengths) if length > 0}
    least, most = (choose(lengths, key=lengths.__getitem__, default="") for choose in (min, max))
    if lengths and lengths[most] > LONGER * lengths[least]:
        yield f"{most} outweighs {least}: its gradient is {lengths[most] / lengths[least]:.2g} times as long"
        factors = [f"{lengths[least] / length:.2g} for {name}" for name, length in lengths.items()]
        yield f"try balance=STCH(), or multiply the weight= of the losses by {', '.join(factors)}"
    elif not against:
        yield "the sum of the losses will do: none outweighs another, and none suffers from a step on the sum"
