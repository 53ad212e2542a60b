"""``multifit tasks FILE``: which tasks pull together and which apart, after a few batches."""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from ..balance import Sum
from ..balance.protocol import PULL_APART
from ..distributed import ALONE
from ..errors import SpecError, counted, limited, quoted
from ..estimator import MultiEstimator
from ..gluon.balance.gradients import ChosenParameters
from ..handlers import LoggingHandler, ProgressBar
from ..protocols import Numbers
from ..sampling import RoundRobin
from ..spec import TaskSpec, TrainerSpec
from ..tables import table
from ..taskfile import UsageError
from .common import add_task_arguments, count, print_result, quiet
from .task import Choices, Task
from .task_gradients import TaskGradients

OPPOSED = 0.25  # methods have helped where the sum's step goes against a task in more than these batches
LONGER = 3.0  # a gradient that is more than this many times as long is said to outweigh the other
DIFFERENT = 0.1  # cosines of features are shown if they differ by more from those of parameters
SHOWN = 10  # pairs of tasks
METHODS = "STCH(), UPGrad(normalize=True) or IMTLG()"
FEATURES, PARAMETERS = "features", "parameters"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument(
        "--batches", type=count, default=50, help="number of batches, of each loader (default: 50)"
    )
    parser.add_argument(
        "--on",
        metavar="parameters|features|PATTERN",
        help="what gradients are compared: those of all parameters that tasks share, of the features where "
        "the tasks branch, or of the parameters that match a pattern, such as body.* (default: parameters, "
        "and features beside them where they differ)",
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
    refused = ""
    with quiet(True):
        try:
            look = _look(options, features=options.on in (None, FEATURES))
        except SpecError as error:
            if options.on is not None:
                raise
            look = _look(options, features=False)  # raises again what has nothing to do with features
            refused = f"\nfeatures were not compared: {error.problems[0].message}"
    print_result("\n".join([*_tables(look), *filter(None, [refused]), "", *_advice(look)]))
    return 130 if look.interrupted else 0


class Look(NamedTuple):
    """What was measured; of K tasks, the lengths of gradients (K,) and the cosines of pairs (K, K).

    `what` says of what the gradients are, and `turns` whether the tasks are loaders that take turns.
    `opposed` (K,) and `affinity` (K, K) are those of :class:`TaskGradients`, and `features` (K, K) are the
    cosines of features.
    """

    names: list[str]
    turns: bool
    interrupted: bool
    what: str
    lengths: Numbers
    cosines: Numbers
    opposed: Numbers
    features: Numbers | None = None
    affinity: Numbers | None = None


def _look(options: argparse.Namespace, features: bool) -> Look:
    """Train, and measure; with `features`, these too, or alone if the command line says so.

    Raises UsageError if there is nothing to compare, and SpecError if features cannot be compared.
    """
    alone, measured = options.on == FEATURES, TaskGradients(options.affinity)

    def estimator(
        net: Any, spec: Any, data: Any, sampling: Any, trainers: Any, initializer: Any, frozen: Any
    ) -> MultiEstimator:
        loaders, terms = task.data[0], spec.terms if isinstance(spec, TaskSpec) else ()
        joins = getattr(sampling, "joins", False)
        measured.take_turns = isinstance(loaders, Mapping) and len(loaders) > 1 and not joins
        measured.names = list(loaders) if measured.take_turns else [term.key for term in terms]
        for problem in _problems(options, spec, measured):
            raise UsageError(f"{options.file}: {problem}")
        balance = Sum(on=FEATURES) if features and not measured.take_turns else None
        if not (alone or measured.take_turns):
            spec = measured.restricted(spec)
        return task.make_estimator(net, spec, _every_batch(trainers), initializer, frozen, balance)

    task = Task(Choices(options), {"estimator": estimator, "history": lambda: None})
    made, names, turns = task.estimator, measured.names, measured.take_turns
    if options.on not in (None, FEATURES, PARAMETERS):
        measured.chosen = ChosenParameters(options.on, made.parameters, ALONE).names
    handlers: list[Any] = [LoggingHandler(), ProgressBar(enabled=False if options.quiet else None)]
    history = made.fit(
        task.data[0],
        batches=options.batches * (len(names) if turns else 1),
        sampling=RoundRobin() if turns else task.results["sampling"],
        event_handlers=handlers if alone else [*handlers, measured],
        seed=task.choices.seed,
    )
    of_features = np.eye(len(names))
    for (i, one), (j, other) in combinations(enumerate(names) if features and not turns else (), 2):
        of_features[i, j] = of_features[j, i] = history[f"train_cosine_{one}_{other}"][-1]
    how = names, turns, made.state.interrupted
    if alone:
        batches = counted(made.state.step, "batch", "batches")
        lengths = np.array([history[f"train_gradnorm_{name}"][-1] for name in names])
        what, opposed = f"features where the tasks branch, mean of {batches}", np.full(len(names), np.nan)
        return Look(*how, what, lengths, of_features, opposed)
    if not measured.shared:
        raise UsageError(f"{options.file}: the tasks share no trained parameter, or a single one had labels")
    rounds = counted(len(measured.gramians), "batch", "batches") + " of each loader" * turns
    what = f"{counted(len(measured.shared), 'parameter')} that tasks share, mean of {rounds}"
    beside = of_features if features and not turns else None
    return Look(*how, what, *measured.summary(), beside, measured.affinity() if options.affinity else None)


def _problems(options: argparse.Namespace, spec: Any, measured: TaskGradients) -> Iterator[str]:
    """Yield why the gradients of these tasks cannot be compared."""
    names, declared = measured.names, isinstance(spec, TaskSpec)
    if len(names) < 2:
        yield f"there is one task{f', {quoted(names)}' if names else ''}, and nothing to compare it with"
    if bound := [term.key for term in spec.terms if term.trainers] if declared else []:
        yield (
            f"the losses {quoted(bound)} are bound to trainers: adversaries pull apart on purpose, and there "
            "is nothing to weigh"
        )
    if options.on == FEATURES and measured.take_turns:
        yield "the loaders take turns, so no batch has features of two tasks; leave --on features out"
    if options.on == FEATURES and options.affinity:
        yield "--affinity takes steps on parameters; leave --on features out"
    if options.on != FEATURES and declared and spec.state:
        yield (
            f"{quoted(spec.state)} is carried from batch to batch, so that each task's pass through a batch "
            "would begin with another state; use --on features"
        )


def _every_batch(trainers: Any) -> Any:
    """Return the trainers so that declared ones update after every batch."""
    if isinstance(trainers, Mapping):
        return {name: _every_batch(each) for name, each in trainers.items()}
    return replace(trainers, every=1, accumulate=False) if isinstance(trainers, TrainerSpec) else trainers


def _tables(look: Look) -> Iterator[str]:
    names = look.names
    yield f"gradients of {look.what}: lengths, shares, and cosines with"
    total = np.nansum(look.lengths) or 1.0
    lengths = zip(names, _numbers(look.lengths, ".3g"), _numbers(look.lengths / total, ".0%"))
    rows = zip(lengths, look.cosines, _numbers(look.opposed, ".0%"))
    cells = [[*length, *_numbers(cosines, ".2f"), share] for length, cosines, share in rows]
    yield table(["task", "length", "share", *names, "opposed"], cells)
    if look.features is not None:
        both = [(i, j, (look.cosines[i, j], look.features[i, j])) for i, j in _pairs(look)]
        differ = [each for each in both if not abs(np.subtract(*each[-1])) <= DIFFERENT]  # NaN does too
        if differ:
            yield '\na method with on="features" sees other cosines:'
            cells = [[f"{names[i]} and {names[j]}", *_numbers(pair, ".2f")] for i, j, pair in differ]
            yield table(["tasks", PARAMETERS, FEATURES], cells)
    if look.affinity is not None:
        yield "\naffinity: by how much a step on the task of a row alone lowers the loss of each column"
        cells = [[name, *_numbers(row, "+.2%")] for name, row in zip(names, look.affinity)]
        yield table(["step on", *names], cells)


def _pairs(look: Look) -> Iterator[tuple[int, int]]:
    return combinations(range(len(look.names)), 2)


def _numbers(values: Iterable[float], form: str) -> list[str]:
    """Return numbers as texts; a dash for what was not measured."""
    return ["-" if math.isnan(value) else format(value, form) for value in values]


def _advice(look: Look) -> Iterator[str]:
    """Yield what the tasks do to each other, and what has helped then by ``nightly.balance_value``."""
    names = look.names
    yield from (f"{n} had no gradient in any batch" for n, g in zip(names, look.lengths) if not g > 0)
    apart = [
        f"{names[i]} and {names[j]} pull apart" for i, j in _pairs(look) if look.cosines[i, j] < PULL_APART
    ]
    yield from limited(apart, SHOWN)
    against = [f"{name} in {share:.0%}" for name, share in zip(names, look.opposed) if share > OPPOSED]
    helped = against or (apart and np.isnan(look.opposed).all())
    if against:
        yield f"a step on the sum of the losses goes against {', '.join(against)} of the batches"
    if helped:
        yield f"try balance={METHODS}"
        if look.turns:
            yield "with a batch of each loader in one update: sampling=Together(), LabelSpec(missing=...)"
    lengths = {name: length for name, length in zip(names, look.lengths) if length > 0}
    least, most = (choose(lengths, key=lengths.__getitem__, default="") for choose in (min, max))
    if lengths and lengths[most] > LONGER * lengths[least]:
        yield f"{most} outweighs {least}: its gradient is {lengths[most] / lengths[least]:.2g} times as long"
        factors = [f"{lengths[least] / length:.2g} for {name}" for name, length in lengths.items()]
        yield f"try balance=STCH(), or multiply the weight= of the losses by {', '.join(factors)}"
    elif not helped:
        yield "the sum of the losses will do: none outweighs another, and none suffers from a step on the sum"
