"""Whether the data that a method of the estimator takes can be used, and dicts of loaders as one loader."""

from collections.abc import Mapping
from copy import deepcopy
from itertools import islice
from typing import Any

from ..distributed import WAY_OUT, Sharded, World, unwrapped
from ..engines.loaders import loaders_of
from ..sampling import Proportional, Sampling, TaskLoaders
from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.checks.data import batch_count, is_array, is_endless, loader_problems, one_shot
from ..spec.terms import task_slots
from ..utils.errors import Problem, raise_problems
from ..utils.stages import TRAIN
from ..utils.text import quoted, shown

SAMPLINGS = "Proportional(), RoundRobin(), Ratios(...) or Together()"


def check_data(
    train: Any,
    val: Any,
    sampling: Sampling | None,
    session: Any,
    train_once: bool = True,
    val_once: bool = True,
    what: str = "train_data",
    endless: tuple[str, str] = ("", ""),
) -> tuple[Any, Any]:
    """Return the training data and the validation data, with one loader in place of a dict of loaders.

    `sampling` says how the training data's loaders are mixed; those of the validation data are read one after
    the other. `train_once` and `val_once` say whether data is read only once. Messages call the training data
    `what`. `endless` are the arguments that limit the training and the validation; where one is "", data may
    be endless. Raises SpecError or DataError with everything that is wrong.
    """
    world, several = session.world, isinstance(train, Mapping)
    if is_array(train) and (is_array(val) or (isinstance(val, (list, tuple)) and all(map(is_array, val)))):
        raise_problems([Problem("data", _arrays_in_place_of_loaders(what, train, val))])
    problems = _problems(world, what, train, train_once and not several, endless[0])
    if val is not None:
        problems += _problems(world, "val_data", val, val_once, endless[1])
    if several:
        sampling = Proportional() if sampling is None else sampling
        problems += [] if problems else _of_unknown_size(what, train)
        problems += _sampling_problems(session, sampling, train) if train else []
    elif sampling is not None:
        message = (
            f"sampling is {type(sampling).__name__}, which mixes several loaders, but {what} is a single"
        )
        problems.append(Problem("data", f"{message} one; give a dict of loaders, or leave sampling= out"))
    raise_problems(problems)
    if several:  # of which ranks may have parts of different sizes
        ranks = world.gather({name: batch_count(unwrapped(loader)) for name, loader in train.items()})
        sizes = {name: max(each.get(name, 0) for each in ranks) for name in train}
        train = TaskLoaders(train, sampling, sizes)
    return train, _evaluated(session.spec, val)


def check_evaluated(data: Any, session: Any, what: str = "data", once: bool = True, endless: str = "") -> Any:
    """Return data to evaluate, with one loader in place of a dict, which reads them one after the other.

    The arguments are as for :func:`check_data`. Raises DataError with everything that is wrong.
    """
    raise_problems(_problems(session.world, what, data, once, endless))
    return _evaluated(session.spec, data)


def overfit_data(session: Any, train: Any, val: Any, count: int, resume: Any) -> tuple[Any, Any]:
    """Return the first batches of the training data, also as validation data if that takes such ones."""
    if resume is not None or not session.world.alone:
        raise ValueError(
            "fit: overfit= only tries out whether a net can learn a few batches by heart; leave it "
            "out to resume a run, and to train in several processes"
        )
    train = _first_of(session.readers[TRAIN], train, count)
    if val is not None and session.spec.evaluate is None:
        val = TaskLoaders(train.loaders) if isinstance(train, TaskLoaders) else train
    return train, val


def each_loader(what: str, data: Any) -> dict[str, Any]:
    """Return the loaders in `data` by their names in messages; `what` is the name of `data` as a whole."""
    loaders = data.loaders if isinstance(data, TaskLoaders) else data
    if isinstance(loaders, Mapping):
        return {f'{what}["{name}"]': loader for name, loader in loaders.items()}
    return {what: data}


def rank_problems(world: World, name: str, data: Any) -> list[Problem]:
    """Return why several processes cannot read a loader in the same order."""
    if world.alone or isinstance(data, Sharded):
        return []
    if one_shot(data):
        why = ", whose batches cannot be divided among processes"
    elif loaders_of(data).is_divided(data):
        why = " with a DistributedSampler, which divides the samples already"
    elif _shuffles(data):
        why = " that shuffles, in another order in every process"
    else:
        return []
    return [Problem("data", f"{name} is a {type(data).__name__}{why}; {WAY_OUT}")]


def endless_problems(what: str, data: Any, limit: str) -> list[Problem]:
    """Return which loaders never end; `limit` is what to give."""
    return [
        Problem("data", f"{name} is a {type(unwrapped(loader)).__name__}, which never ends; give {limit}")
        for name, loader in each_loader(what, data).items()
        if limit and is_endless(loader)
    ]


def _first_of(reader: Any, data: Any, count: int) -> Any:
    """Return the first batches of a loader, or of each of several; some iterators would overwrite them."""
    if isinstance(data, TaskLoaders):
        loaders = {name: _first_of(reader, loader, count) for name, loader in data.loaders.items()}
        return TaskLoaders(loaders, data.sampling)
    return [deepcopy(batch) for batch in islice(reader.iterate(data), count)]


def _evaluated(spec: TaskSpec, data: Any) -> Any:
    """Return data to evaluate, with one loader in place of a dict: of sets, unless a key names a task."""
    if not isinstance(data, Mapping):
        return data
    tasks = {*task_slots(spec.evaluation), *spec.evaluation.labels}
    return TaskLoaders(data, apart=tasks.isdisjoint(data))


def _problems(world: World, what: str, data: Any, once: bool, endless: str) -> list[Problem]:
    """Return what is wrong with a loader, or with a dict of them."""
    if isinstance(data, Mapping):
        if not data:
            return [Problem("data", f"{what} is an empty dict; give a loader for each task")]
        strange = [name for name in data if not (isinstance(name, str) and name)]
        if strange:
            message = (
                f"{what} is a dict with the keys {quoted(strange)}; give strings, the names of tasks or sets"
            )
            return [Problem("data", message)]
    problems = []
    for name, loader in each_loader(what, data).items():
        problems += loader_problems(name, loader, once) or rank_problems(world, name, loader)
    return problems or endless_problems(what, data, endless)


def _arrays_in_place_of_loaders(what: str, train: Any, val: Any) -> str:
    """Return the message about ``fit(X, y)``: data and labels, in place of two loaders."""
    labels = val if isinstance(val, (list, tuple)) else [val]
    names = ", ".join(f"y{number}" for number in range(1, len(labels) + 1)) if len(labels) > 1 else "y"
    return (
        f"{what} is one array, {describe.array(train)}, and the second argument, {describe.arrays(labels)}, "
        "is taken for val_data; labels belong into the batches of the first argument: give "
        f"multifit.batches(X, {names}, batch_size=32, shuffle=True)"
    )


def _of_unknown_size(what: str, data: Mapping[str, Any]) -> list[Problem]:
    way_out = "give a DataLoader, a list, or a loader with a __len__"
    return [
        Problem("data", f"{name} is a {kind} that does not know how many batches it has; {way_out}")
        for name, loader in each_loader(what, data).items()
        if (batch_count(unwrapped(loader)) is None or is_endless(loader))
        and (kind := type(unwrapped(loader)).__name__)
    ]


def _sampling_problems(session: Any, sampling: Any, data: Mapping[str, Any]) -> list[Problem]:
    if not hasattr(sampling, "counts") or isinstance(sampling, type):
        return [Problem("data", f"sampling is {shown(sampling)}; valid are {SAMPLINGS}")]
    messages = [f"sampling: {message}" for message in sampling.messages(list(data))]
    kind = type(sampling).__name__
    if sampling.joins and not session.world.alone:
        messages.append(
            f"sampling: {kind} joins batches in one process only, but {session.world.size} train together; "
            "let loaders take turns, as with Proportional()"
        )
    method = session.balance
    if method is not None and method.needs == "gramian" and not sampling.joins:
        messages.append(
            f"balance: {type(method).__name__} compares the gradients of tasks in one batch, but with {kind} "
            "each batch comes from one loader; give sampling=Together(), or a method of losses such as DWA"
        )
    return [Problem("data", message) for message in messages]


def _shuffles(data: Any) -> bool:
    """Whether an iterator, or one that it reads, says that it shuffles."""
    inner = [*getattr(data, "iters", ()), *([data.data_iter] if hasattr(data, "data_iter") else ())]
    return getattr(data, "shuffle", False) is True or any(map(_shuffles, inner))
