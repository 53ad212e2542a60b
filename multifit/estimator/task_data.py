"""Makes a dict of loaders the one loader that a fit or an evaluation reads."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from ..checks import batch_count, describe, is_array, loader_problems
from ..distributed import World, unwrapped
from ..errors import Problem, quoted, raise_problems, shown
from ..sampling import Proportional, Sampling, TaskLoaders

SAMPLINGS = "Proportional(), RoundRobin(), Ratios(...) or Together()"


def task_loaders(
    engine: Any, train: Any, val: Any, sampling: Sampling | None, once: bool, what: str = "train_data"
) -> list[Any]:
    """Return the training data and the validation data, with one loader in place of a dict of loaders.

    `sampling` says how the training data's loaders are mixed; those of the validation data are read one after
    the other, and only once if `once`. Data that is not a dict is returned as it is. Messages call the
    training data `what`. Raises SpecError or DataError with everything that is wrong.
    """
    raise_problems(_arrays_problems(what, train, val, lists=engine.spec.batch_fn is None))
    problems, val_loaders = [], val
    if isinstance(val, Mapping):
        problems = _loader_problems("val_data", val, once)
        val_loaders = TaskLoaders(val)
    if not isinstance(train, Mapping):
        if sampling is not None:
            kind = type(sampling).__name__
            message = f"sampling is {kind}, which mixes several loaders, but {what} is a single one"
            problems.append(Problem("data", f"{message}; give a dict of loaders, or leave sampling= out"))
        raise_problems(problems)
        return [train, val_loaders]
    sampling = Proportional() if sampling is None else sampling
    wrong = _loader_problems(what, train, once=False) or _of_unknown_size(what, train)
    wrong += _sampling_problems(engine, sampling, train)
    raise_problems([*wrong, *problems])
    train_loaders = TaskLoaders(train, sampling, _sizes(engine.world, train))
    raise_problems(_counts_problems(train_loaders))
    return [train_loaders, val_loaders]


def evaluation_loaders(data: Any, what: str, once: bool = True) -> Any:
    """Return a dict of loaders as one loader, which reads them one after the other; other data as it is.

    `once` says whether it is read only once. Raises DataError with everything that is wrong.
    """
    if not isinstance(data, Mapping):
        return data
    raise_problems(_loader_problems(what, data, once))
    return TaskLoaders(data)


def each_loader(what: str, data: Any) -> dict[str, Any]:
    """Return the loaders in `data` by their names in messages; `what` is the name of `data` as a whole."""
    if isinstance(data, TaskLoaders):
        return {f'{what}["{name}"]': loader for name, loader in data.loaders.items()}
    return {what: data}


def _arrays_problems(what: str, train: Any, val: Any, lists: bool) -> list[Problem]:
    """Return the problem of ``fit(X, y)``: data and labels, in place of two loaders.

    `lists` says whether lists of numbers are such data too, not batches of which ``batch_fn=`` makes arrays.
    """
    is_listed = lists and _is_numbers(val)
    labels = val if isinstance(val, (list, tuple)) and not is_listed else [val]
    one_array = is_array(train) or (lists and _is_numbers(train))
    if not (one_array and labels and (is_listed or all(map(is_array, labels)))):
        return []
    names = [f"y{number}" for number in range(1, len(labels) + 1)] if len(labels) > 1 else ["y"]
    message = (
        f"{what} is one array, {describe.array(train)}, and the second argument, {describe.arrays(labels)}, "
        "is taken for val_data; labels belong into the batches of the first argument: give "
        f"DataLoader(ArrayDataset({', '.join(['X', *names])}), batch_size=32, shuffle=True), of gluon.data"
        f"{'' if hasattr(train, 'dtype') or isinstance(train, list) else ', with X.to_numpy() for a frame X'}"
    )
    return [Problem("data", message)]


def _is_numbers(data: Any, depth: int = 2) -> bool:
    """Whether data is a list of numbers, or of lists of them."""
    if type(data) not in (list, tuple) or not data or not depth:
        return False
    return isinstance(data[0], (int, float)) or _is_numbers(data[0], depth - 1)


def _loader_problems(what: str, data: Mapping[Any, Any], once: bool) -> list[Problem]:
    if not data:
        return [Problem("data", f"{what} is an empty dict; give a loader for each task")]
    strange = [name for name in data if not (isinstance(name, str) and name)]
    if strange:
        return [Problem("data", f"{what} is a dict with the keys {quoted(strange)}; keys are names of tasks")]
    return [p for name, loader in data.items() for p in loader_problems(f'{what}["{name}"]', loader, once)]


def _of_unknown_size(what: str, data: Mapping[str, Any]) -> list[Problem]:
    messages = [
        f'{what}["{name}"] is a {type(unwrapped(loader)).__name__} that does not know how many batches it has'
        for name, loader in data.items()
        if batch_count(unwrapped(loader)) is None
    ]
    way_out = "give a DataLoader, a list, or a loader with a __len__"
    return [Problem("data", f"{message}; {way_out}") for message in messages]


def _sizes(world: World, data: Mapping[str, Any]) -> dict[str, int]:
    """Return the loaders' numbers of batches; if ranks have parts of a loader, that of the largest part."""
    ranks = world.gather_json({name: batch_count(unwrapped(loader)) for name, loader in data.items()})
    return {name: max(sizes.get(name, 0) for sizes in ranks) for name in data}


def _counts_problems(loaders: TaskLoaders) -> list[Problem]:
    """Return what is wrong with the numbers of batches that the user's own sampling returned."""
    counts: Any = loaders.counts
    is_mapping = isinstance(counts, Mapping) and set(counts) == set(loaders.loaders)
    if (
        is_mapping
        and all(isinstance(count, (int, np.integer)) and count >= 0 for count in counts.values())
        and any(counts.values())
    ):
        return []
    kind = type(loaders.sampling).__name__
    valid = f"a whole number for each of {quoted(loaders.loaders)}, not all of them 0"
    return [Problem("data", f"sampling: {kind}.counts returned {shown(counts)}; valid is {valid}")]


def _sampling_problems(engine: Any, sampling: Any, data: Mapping[str, Any]) -> list[Problem]:
    has_methods = all(callable(getattr(sampling, name, None)) for name in ("messages", "counts", "updates"))
    if not has_methods or not hasattr(sampling, "joins") or isinstance(sampling, type):
        return [Problem("data", f"sampling is {shown(sampling)}; valid are {SAMPLINGS}")]
    messages = [f"sampling: {message}" for message in sampling.messages(list(data))]
    kind = type(sampling).__name__
    if sampling.joins and not engine.world.alone:
        messages.append(
            f"sampling: {kind} joins batches in one process only, but {engine.world.size} train together; "
            "let loaders take turns, as with Proportional()"
        )
    method = engine.balance
    if method is not None and method.needs == "gramian" and not sampling.joins:
        messages.append(
            f"balance: {type(method).__name__} compares the gradients of tasks in one batch, but with {kind} "
            "each batch comes from one loader; give sampling=Together(), or a method of losses such as DWA"
        )
    return [Problem("data", message) for message in messages]
