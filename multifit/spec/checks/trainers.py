"""Check trainers of any library: how they are declared, select parameters, and how often they update."""

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

from ...utils.arguments import Count, as_float, checked_value, is_finite_number
from ...utils.errors import Problem
from ...utils.text import quoted, shown, suggest
from .. import TrainerSpec
from ..terms import Term

LISTED = 6  # names in a message


def listing(names: Sequence[str]) -> str:
    """Return the first names, quoted, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(f'"{name}"' for name in names[:LISTED]) + more


def select_by_pattern(
    where: str,
    text: str,
    parameters: Mapping[str, Any],
    every: Mapping[str, Any],
    others: Mapping[str, str],
) -> tuple[list[str], list[Problem]]:
    """Return the names of the parameters that a regular expression selects; it must match a whole name.

    `every` are all parameters, also those that are not trained, and `others` the further names of shared
    ones, with the first. `where` is the place of the selection in messages. Also returns the problems found.
    """
    try:
        pattern = re.compile(text)
    except re.error as error:
        return [], [Problem("trainer", f"{where}: {quoted([text])} is not a regular expression: {error}")]
    names = [name for name in parameters if pattern.fullmatch(name)]
    if names:
        return names, []
    what = f"the pattern {quoted([text])}"
    other = next((name for name in others if pattern.fullmatch(name)), None)
    if other is not None:
        message = f'{what} matches "{other}", which is another name of the shared parameter "{others[other]}"'
        return [], [Problem("trainer", f"{where}: {message}; select it by that name")]
    constant = [name for name in every if pattern.fullmatch(name)]
    return [], [selects_nothing(where, what, parameters, constant, pattern)]


def selects_nothing(
    where: str,
    what: str,
    parameters: Mapping[str, Any],
    constant: Sequence[str],
    pattern: re.Pattern[str] | None = None,
) -> Problem:
    """Return that a selection has none of the `parameters`; `constant` are the others that it has."""
    if not parameters:
        return Problem("trainer", f"{where}: the net has no parameters to train")
    if constant:
        message = f"{what} selects only what is not trained, such as running statistics: {listing(constant)}"
        return Problem("trainer", f"{where}: {message}; leave it out")
    text = f"{where}: {what} selects none of the net's parameters"
    begun = [name for name in parameters if pattern is not None and pattern.match(name)]
    if pattern is not None and begun:
        whole = f"{pattern.pattern}.*"  # in a pattern of alternatives, this extends only the last
        is_enough = all(re.fullmatch(whole, name) for name in begun)
        text += f' (did you mean "{whole if is_enough else f"({pattern.pattern}).*"}"?)'
    elif pattern is not None:
        text += suggest(pattern.pattern, parameters)
    valid = "a pattern must match a whole name, such as " if pattern is not None else "its parameters are "
    return Problem("trainer", f"{text}; {valid}{listing(list(parameters))}")


def declared_problems(
    named: Mapping[Any, Any],
    where: Mapping[Any, str],
    library: tuple[type, str],
    optimizer_of: Callable[[Any], Any],
) -> list[Problem]:
    """Check the types and names of trainers, and that no two share an optimizer object.

    `library` is the class of trainers that users build themselves, and its name.
    """
    built, name_of_class = library
    messages = [
        f"trainers: {shown(name)} is not a name; name each trainer with a string"
        for name in named
        if not isinstance(name, str) or not name
    ]
    messages += [
        _not_a_trainer(where[name], each, name_of_class)
        for name, each in named.items()
        if not isinstance(each, (TrainerSpec, built))
    ]
    if not named:
        messages.append("trainers: the dict is empty; name at least one trainer, or leave trainers= out")
    owners: dict[int, list[str]] = {}
    for name, value in named.items():
        if isinstance(value, built):
            owners.setdefault(id(optimizer_of(value)), []).append(name)
    messages += [
        f"the trainers {' and '.join(names)} share one optimizer object, whose parameters and counters "
        "would mix; give each its own"
        for names in owners.values()
        if len(names) > 1
    ]
    return [Problem("trainer", message) for message in messages]


def _not_a_trainer(where: str, value: object, name_of_class: str) -> str:
    way_out = 'give TrainerSpec(".*", "adam")'
    if isinstance(value, (list, tuple)):
        way_out = 'several trainers need names: give a dict, such as {"body": TrainerSpec("body.*"), ...}'
    return f"{where}: {shown(value)} is neither a TrainerSpec nor a {name_of_class}; {way_out}"


def spec_messages(where: str, spec: TrainerSpec, aliases: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a spec whatever its optimizer is; `aliases` are options' other names."""
    messages, norm, options = [], spec.clip_norm, spec.optimizer_params
    if norm is not None and not (is_finite_number(norm) and as_float(norm) > 0):
        messages.append(f"{where}: clip_norm is {shown(norm)}; it must be a finite number above 0, or None")
    messages += value_messages(f"{where}: every", spec.every, Count)
    messages += value_messages(f"{where}: accumulate", spec.accumulate, bool)
    if options is not None and not isinstance(options, Mapping):
        way_out = 'give a dict, such as {"learning_rate": 1e-3}'
        messages.append(f"{where}: optimizer_params is {shown(options)}; {way_out}")
    elif options:
        messages += [
            f'{where}: optimizer_params has both "{name}" and "{alias}", which are the same; leave one out'
            for alias, name in aliases.items()
            if {alias, name} <= options.keys()
        ]
    return messages


def option_messages(
    where: str,
    optimizer: str,
    options: Mapping[str, Any],
    takes: Collection[str],
    hints: Mapping[str, Any],
    aliases: Collection[str],
) -> list[str]:
    """Return the options that an optimizer does not take, and what is wrong with values that have a hint."""
    has = f"; {optimizer} has {quoted(sorted(takes))}"
    unknown = [name for name in options if name not in takes]
    messages = [f"{where}: unknown option {shown(n)}{suggest(n, [*takes, *aliases])}{has}" for n in unknown]
    for name in (name for name in options if name in hints):
        messages += value_messages(f"{where}: {name}", options[name], hints[name])
    return messages


def value_messages(where: str, value: object, hint: Any) -> list[str]:
    """Return what is wrong with a value; see :func:`multifit.utils.arguments.checked_value`."""
    try:
        checked_value(where, value, hint)
    except ValueError as error:
        return [str(error)]
    return []


def coverage_problems(
    updated: Mapping[str, Sequence[str]], candidates: Mapping[str, Any], frozen: Container[str]
) -> list[Problem]:
    """Check that each trainable parameter has exactly one trainer, or is frozen.

    `updated` are the names of each trainer's parameters.
    """
    owners: dict[str, list[str]] = {name: [] for name in candidates}
    for trainer, names in updated.items():
        for name in names:
            owners[name].append(trainer)
    shared: dict[tuple[str, ...], list[str]] = {}
    for name, trainers in owners.items():
        if len(trainers) > 1:
            shared.setdefault(tuple(trainers), []).append(name)
    messages = [
        f"the trainers {' and '.join(trainers)} would update {listing(names)}; each parameter belongs to "
        "exactly one: narrow a pattern"
        for trainers, names in shared.items()
    ]
    without = [name for name, trainers in owners.items() if not trainers and name not in frozen]
    if without:
        others = [name for name, trainers in owners.items() if trainers]
        messages.append(
            f"no trainer updates {listing(without)}, so they would stay as they are; add a TrainerSpec for "
            f"them, or pass {freezing(without, others)}"
        )
    return [Problem("trainer", message) for message in messages]


def freezing(names: Sequence[str], others: Sequence[str]) -> str:
    """Return the argument ``frozen=[...]`` that selects some parameters, and none of the others."""
    return f"frozen=[{listing(list(dict.fromkeys(_pattern(name, others) for name in names)))}]"


def _pattern(name: str, updated: Sequence[str]) -> str:
    """Return a pattern that selects a parameter, as many similar ones as possible, and none in `updated`."""
    parts = name.split(".")
    blocks = [f"{'.'.join(parts[:depth])}.*" for depth in range(1, len(parts))]
    kinds = [f".*{part}" for part in parts[1:][-1:]]
    narrow = (each for each in blocks + kinds if not any(re.fullmatch(each, other) for other in updated))
    return next(narrow, name)


def rhythm_messages(where: str, rhythm: Any, accumulate: int) -> list[str]:
    """Return why a trainer's rhythm contradicts that of the estimator, which is for all trainers."""
    if accumulate == 1 or rhythm == (accumulate, True):
        return []
    return [
        f"{where}: every={rhythm.every}, but MultiEstimator(accumulate={accumulate}) is for all "
        f"trainers; leave every= out, or give every={accumulate}, accumulate=True to each TrainerSpec "
        "that accumulates"
    ]


def bound_problems(terms: Sequence[Term], trainers: Mapping[str, Any]) -> list[Problem]:
    """Return the names of trainers that do not exist, and the trainers without a loss."""
    return [Problem("spec", message) for message in _bound_messages(terms, trainers)]


def window_problems(terms: Sequence[Term], windows: Mapping[str, int]) -> list[Problem]:
    """Return the losses whose trainers accumulate different numbers of batches, `windows`, by trainer.

    That matters to a loss that is not divided by the number of samples: its divisor is that of all batches of
    an update.
    """
    messages = []
    for term in terms:
        different = {name: windows[name] for name in term.trainers or windows}
        if not term.counts_samples and len(set(different.values())) > 1:
            by = "normalize_by" if term.spec.normalize_by is not None else "the samples that have its labels"
            numbers = ", ".join(f'{count} of "{name}"' for name, count in different.items())
            messages.append(
                f"{term.where}: is divided by {by}, in all batches of an update, but its trainers "
                f"accumulate different numbers of batches: {numbers}; let them accumulate alike, or bind the "
                "loss to one of them with trainers="
            )
    return [Problem("trainer", message) for message in messages]


def _bound_messages(terms: Sequence[Term], trainers: Mapping[str, Any]) -> Iterator[str]:
    for term in terms:
        for name in term.trainers:
            if name not in trainers:
                near = suggest(name, trainers)
                found = f"there is no trainer {quoted([name])}{near}"
                yield f"{term.where}: {found}; valid are {quoted(trainers)}"
    bound = {name for term in terms for name in term.trainers}
    if not bound or not bound <= trainers.keys() or not all(term.trainers for term in terms):
        return
    for name in trainers:
        if name not in bound:
            yield (
                f'trainers["{name}"]: no loss trains its parameters, as all are bound to other trainers; '
                "name it in the trainers= of a loss, or list its parameters in frozen="
            )


def frozen_problems(
    where: str, params: Any, names: Collection[str], frozen: Collection[str]
) -> list[Problem]:
    """Return why the `names` that `params` selects cannot be frozen, or learn; ``frozen=`` has `frozen`."""
    if never := sorted(set(names) & set(frozen)):
        message = f"{where}: frozen= has taken {listing(never)} from the trainers"
        return [Problem("trainer", f"{message}; leave frozen= out, and freeze them later")]
    message = f"{where}: {shown(params)} selects no parameters; give a pattern"
    return [] if names else [Problem("trainer", message)]


def accumulating_problems(rhythms: Mapping[str, Any]) -> list[Problem]:
    """Return the problem of trainers that add up gradients outside of a fit."""
    message = "accumulate=True adds up gradients within a fit only; call fit, or leave accumulate out"
    return [
        Problem("trainer", f'trainers["{name}"]: {message}')
        for name, rhythm in rhythms.items()
        if rhythm.accumulate
    ]


def unreached_problems(names: Sequence[str]) -> list[Problem]:
    """Return the problem of parameters whose shape is still unknown after a forward pass."""
    message = (
        f"the forward pass never reached {listing(names)}: no trainer can update what has no shape yet; "
        f'take the layer out of the net, or pass frozen=["{"".join(names[:1]).rpartition(".")[0]}.*"]'
    )
    return [Problem("trainer", message)] if names else []
