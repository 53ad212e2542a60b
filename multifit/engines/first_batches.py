"""Read the first batches of several loaders, and check which slots each loader has."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from ..sampling import LoaderCounts, TaskBatch, TaskLoaders
from ..spec import TaskSpec
from ..spec.checks import describe
from ..spec.checks.data import one_shot
from ..spec.parsing import is_missable
from ..spec.plan import LoaderPlan
from ..spec.terms import TaskSlots, slots_of, task_slots, with_optional
from ..utils.errors import DataError, Problem, SpecError, raise_problems, user_code
from ..utils.seeding import preserve_rng
from ..utils.stages import TRAIN
from ..utils.text import counted, quoted, suggest
from .batch import Shards, arrays_in


class Peeked(NamedTuple):
    """A batch that was read ahead, and this process's share of it; it serves as a loader of one batch."""

    raw: Any
    share: Any


class FirstBatches(NamedTuple):
    """The first batches of several loaders, or the one that they make together.

    `slots` are those of each loader's batches. `plans` say what training takes from each loader. `sets` are
    the loaders' names if they hold sets that are evaluated one by one.
    """

    batches: Sequence[Peeked]
    slots: Mapping[str, TaskSlots]
    plans: Sequence[LoaderPlan] = ()
    sets: tuple[str, ...] = ()


def first_batches(session: Any, stage: str, data: TaskLoaders, what: str) -> FirstBatches:
    """Read the first batch of each loader; `what` is the loaders' name in messages.

    Random states stay as they are. Iterators in `data` are replaced by others, which begin with the same
    batch. Raises SpecError or DataError with all problems: loaders that are empty, cannot be read, or have
    unknown slots, and losses whose labels no loader has.
    """
    spec = session.spec if stage == TRAIN else session.spec.evaluation
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
                peeked[name], batches = session.readers[stage].peek(loader, where)
            if one_shot(loader):
                data.loaders[name] = batches  # the first one is read again with the others
            slots[name] = _slots_of(
                spec, name, peeked[name].raw, where, session.batch_axis, name in data.sets
            )
        except (DataError, SpecError) as error:
            problems += error.problems
    if not problems:
        messages = [] if data.joins else list(_without_inputs(spec, slots, what))
        if stage == TRAIN:
            messages += _lacking_messages(spec, slots, data.joins)
            messages += _not_compared(session, slots) if data.joins else ()
        problems = [Problem("spec", message) for message in messages]
    raise_problems(problems)
    firsts = [Peeked(TaskBatch({name: each.raw}), each.share) for name, each in peeked.items()]
    if data.joins:
        share = next(iter(peeked.values())).share
        firsts = [Peeked(TaskBatch({name: each.raw for name, each in peeked.items()}), share)]
    if data.sampling is not None:
        raise_problems(_colliding(session.stages[stage].figures.names(), data))
    data.slots = slots
    session.read_tasks(stage, slots, data.joins)
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


def _not_compared(session: Any, slots: Mapping[str, TaskSlots]) -> Iterator[str]:
    """Yield the tasks that have no sample in common, if gradients of features are to be compared.

    If each loader has inputs of its own, a sample is one of every loader.
    """
    spec, balancer = session.spec, session.balancer
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
