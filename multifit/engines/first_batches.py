"""Read the first batches of several loaders, and check which slots each loader has."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..checks import describe, one_shot
from ..errors import DataError, Problem, SpecError, counted, quoted, raise_problems, suggest, user_code
from ..sampling import LoaderCounts, TaskBatch, TaskLoaders
from ..seeding import preserve_rng
from ..spec import TaskSpec
from ..spec.parsing import is_missable
from ..spec.plan import LoaderPlan
from ..spec.terms import TaskSlots, slots_of, task_slots, with_optional
from ..stages import EVALUATE, TRAIN
from .raw_batches import arrays_in
from .runner import FirstBatches, Peeked
from .shares import Shards

NO_LOSS = "losses: there is none to train on; declare at least one in the TaskSpec"


@dataclass(frozen=True)
class DryRun:
    """The results of the first batch of each loader, by stage; empty for a stage without data.

    `loaders` describe each loader and what training takes from it, if there are several.
    """

    results: Mapping[str, Sequence[Any]]
    loaders: Sequence[LoaderPlan] = ()

    @property
    def train(self) -> Any:
        """The result of the first training batch."""
        return self.results[TRAIN][0]


def each_first(raw: Any, val_data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the stage and the data of each first batch, of one loader or of several."""
    for name, data in ((TRAIN, raw), (EVALUATE, val_data)):
        if name == TRAIN or data is not None:
            firsts = data.batches if isinstance(data, FirstBatches) else [data]
            yield from ((name, first) for first in firsts)


def is_refused(engine: Any, stage: str, problems: Sequence[Problem]) -> bool:
    """Whether one TaskSpec serves both stages, and its problems are known from the other one."""
    is_known = stage == EVALUATE and engine.spec.evaluate is None
    return is_known and any(problem.kind == "spec" for problem in problems)


@contextmanager
def raised_first(problems: Sequence[Problem]) -> Iterator[None]:
    """Raise the problems instead of an error of the block: they may be its cause, and are easier to fix."""
    try:
        yield
    except Exception:
        raise_problems(problems)
        raise


def fetch_first(engine: Any, stage: str, data: Any) -> tuple[Any, list[Problem]]:
    """Return a stage's first batch, placed on the devices, or None, and the problems with it.

    `data` is the batch that was read for training, the loader for an evaluation, or a batch that was read
    ahead.
    """
    if stage == EVALUATE:
        try:
            with preserve_rng():
                data, _ = engine.readers[stage].peek_first(data, "val_data")
        except DataError as error:
            return None, list(error.problems)
    # first batches of several loaders are checked before training begins, without handlers that change them
    begins = not isinstance(data, Peeked)
    if isinstance(data, Peeked):
        engine.readers[stage].current.share, data = data.share, data.raw
    splitter = engine.splitter(stage, changes=begins)
    parts, problems = splitter.name_arrays(data)
    if not problems:
        return splitter.distribute(data, parts), []
    return None, named_problems(problems, stage, data)


def named_problems(problems: Sequence[Problem], stage: str, data: Any) -> list[Problem]:
    """Return the problems with the name of the data, unless they are those of the only training data."""
    data_name = {TRAIN: "train_data", EVALUATE: "val_data"}[stage]
    where = "" if stage == TRAIN else f"{data_name}: "
    raw = data.raw if isinstance(data, Peeked) else data
    if isinstance(raw, TaskBatch):
        where = f'{data_name} "{raw.name}": '
    return [Problem(problem.kind, f"{where}{problem.message}") for problem in problems]


def first_batches(engine: Any, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
    """Read the first batch of each loader; `what` is the loaders' name in messages.

    Random states stay as they are. Iterators in `data` are replaced by others, which begin with the same
    batch. Raises SpecError or DataError with all problems: loaders that are empty, cannot be read, or have
    unknown slots, and losses whose labels no loader has.
    """
    spec = engine.spec if stage == TRAIN else engine.spec.evaluation
    if spec.state:
        message = (
            f"state: {quoted(spec.state)} come from the previous batch; give one loader, not a dict of them"
        )
        raise_problems([Problem("spec", message)])
    peeked: dict[str, Peeked] = {}
    slots: dict[str, TaskSlots] = {}
    problems: list[Problem] = []
    for name, loader in data.loaders.items():
        where = f'{what}["{name}"]'
        try:
            with preserve_rng():
                peeked[name], batches = engine.readers[stage].peek(loader, where)
            if one_shot(loader):
                data.loaders[name] = batches  # the first one is read again with the others
            slots[name] = _slots_of(spec, name, peeked[name].raw, where, engine.batch_axis, name in data.sets)
        except (DataError, SpecError) as error:
            problems += error.problems
    if not problems:
        messages = [] if data.joins else list(_without_inputs(spec, slots, what))
        if stage == TRAIN:
            messages += _lacking_messages(spec, slots, data.joins)
            messages += _not_compared(engine, slots) if data.joins else ()
        problems = [Problem("spec", message) for message in messages]
    raise_problems(problems)
    firsts = [Peeked(TaskBatch({name: each.raw}), each.share) for name, each in peeked.items()]
    if data.joins:
        share = next(iter(peeked.values())).share
        firsts = [Peeked(TaskBatch({name: each.raw for name, each in peeked.items()}), share)]
    if data.sampling is not None:
        raise_problems(_colliding(engine.stages[stage].figures.names(), data))
    data.slots = slots
    engine.read_tasks(stage, slots, data.joins)
    return FirstBatches(firsts, slots, _plans(data, slots) if data.sampling else (), data.sets)


def _colliding(figures: Sequence[str], data: TaskLoaders) -> list[Problem]:
    counts = [name for name in LoaderCounts(data).names if name in figures]
    message = 'the figure "{}" is also that of a loss or metric; rename that one, or the loader'
    return [Problem("spec", message.format(name)) for name in counts]


def _plans(data: TaskLoaders, slots: Mapping[str, TaskSlots]) -> list[LoaderPlan]:
    kind, counts = type(data.sampling).__name__, data.counts
    return [
        LoaderPlan(name, size, counts[name], tuple(slots[name].values()), kind)
        for name, size in data.sizes.items()
    ]


def _slots_of(spec: TaskSpec, name: str, raw: Any, where: str, batch_axis: int, is_set: bool) -> TaskSlots:
    """Return the slots of a loader's batches; raises DataError if the loader or a slot is unknown."""
    known = task_slots(spec)
    if spec.parts and name not in known and not is_set:
        raise DataError(f"{where}: {_unknown(name, known, 'parts of the spec')}")
    batch = raw
    if spec.batch_fn is not None:
        with user_code(lambda: f"batch_fn, called with batch {describe.structure(raw)}"):
            batch = spec.batch_fn(raw)
    batch = batch[0] if isinstance(batch, Shards) and batch else batch
    if isinstance(batch, Mapping):
        return _slots_of_dict(spec, known.get(name, {}), batch, where)
    count = len(arrays_in(batch, batch_axis, lambda array: None))
    whole = {slot: slot for slot in spec.batch}
    if name not in known and count != len(whole):
        tasks = "losses" if spec.terms else "metrics"
        raise DataError(
            f"{where}: {_unknown(name, known, tasks)}, and its batches have {counted(count, 'array')}, not "
            f"all {counted(len(whole), 'slot')}; name it after its task, or yield dicts"
        )
    return known[name] if name in known and count != len(whole) else whole


def _unknown(name: str, known: Mapping[str, Any], tasks: str) -> str:
    return f'there is no task "{name}"{suggest(name, known)}; tasks are the {tasks}: {quoted(known)}'


def _slots_of_dict(spec: TaskSpec, own: TaskSlots, batch: Mapping[str, Any], where: str) -> dict[str, str]:
    slots = {name: own.get(name, name) for name in batch}
    valid = [*dict.fromkeys([*own, *spec.batch])]
    unknown = [name for name, slot in slots.items() if slot not in spec.batch]
    if unknown:
        message = "; ".join(f'its batches have "{name}"{suggest(name, valid)}' for name in unknown)
        raise DataError(f"{where}: {message}, which the spec does not declare; declared are {quoted(valid)}")
    return slots


def _lacking_messages(spec: TaskSpec, slots: Mapping[str, TaskSlots], joined: bool) -> Iterator[str]:
    """Yield the losses whose labels no loader has, and the reasons why batches cannot be joined."""
    per_loader = {name: set(own.values()) for name, own in slots.items()}
    everything = set().union(*per_loader.values())
    found = "; ".join(f"{name} has {quoted(names.values())}" for name, names in slots.items())
    for term in with_optional(spec, spec.slot_names).terms:
        lacking = [slot for slot in spec.slot_names if slot in term.optional - everything]
        if lacking:
            lacks = f"no loader has {quoted(lacking)}, which it takes"
            yield f"{term.where}: {lacks}: {found}; add it to a loader"
        elif not joined and not any(term.optional <= own for own in per_loader.values()):
            yield (
                f"{term.where}: it takes {quoted(sorted(term.optional))}, which no loader has together: "
                f"{found}; let one loader have them all, or use Together()"
            )
    inputs = set(spec.inputs)
    if not joined:
        return
    if all(inputs <= own for own in per_loader.values()):
        yield from _unmissable(spec, per_loader)
    elif not inputs <= everything or sum(map(len, per_loader.values())) > len(everything):
        yield (
            f"sampling: Together joins batches that each have all inputs, {quoted(spec.inputs)}, or batches "
            f"that have no slot in common and make up a whole batch; {found}"
        )


def _not_compared(engine: Any, slots: Mapping[str, TaskSlots]) -> Iterator[str]:
    """Yield the tasks that have no sample in common, if gradients of features are to be compared.

    If each loader has inputs of its own, a sample is one of every loader.
    """
    spec, balancer = engine.spec, engine.balancer
    given = {name: set(own.values()) for name, own in slots.items()}
    whole = all(set(spec.inputs) <= own for own in given.values())
    if balancer is None or getattr(balancer.method, "on", "parameters") != "features" or not whole:
        return
    loaders: dict[str, set[str]] = {}  # those that have samples of a task
    for term in (term for term in spec.terms if term.spec.weight != 0):
        of_task = loaders.setdefault(balancer.tasks.names[balancer.tasks.of_loss[term.key]], set())
        of_task |= {name for name, own in given.items() if slots_of(spec, term) <= own}
    kind = type(balancer.method).__name__
    for one, other in combinations(loaders, 2):
        if loaders[one].isdisjoint(loaders[other]):
            yield (
                f"balance: {kind} compares gradients of features, but with Together no sample has labels of "
                f'both "{one}" and "{other}", so that theirs never meet; give {kind}(on="parameters")'
            )


def _without_inputs(spec: TaskSpec, slots: Mapping[str, TaskSlots], what: str) -> Iterator[str]:
    """Yield the loaders that lack an input, if their batches are not joined."""
    way_out = "let all loaders have all inputs, or train with Together() and validate on whole batches"
    for name, own in slots.items():
        lacking = [slot for slot in spec.inputs if slot not in own.values()]
        if lacking:
            yield f'{what}["{name}"] has no {quoted(lacking)}, which the net is called with; {way_out}'


def _unmissable(spec: TaskSpec, per_loader: Mapping[str, set[str]]) -> Iterator[str]:
    masks = {spec.label_specs[name].missing for name in spec.labels}
    for name in spec.labels:
        without = [loader for loader, own in per_loader.items() if name not in own]
        if not without or name in masks:
            continue
        where = f'labels["{name}"]: with Together, samples of {quoted(without)} lack it; declare '
        if not is_missable(spec.label_specs[name]):
            yield f'{where}LabelSpec("{name}", missing="nan"), or another value that it never has'
