"""Names: trees of output names, and references to outputs and batch slots."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..utils.text import nearest, quoted, shown, suggest

OUTPUTS = "outputs"
LABELS = "labels"  # all slots of the batch, as losses and metrics may take inputs as labels
LOSSES = "losses"
SINGULAR = {OUTPUTS: "output", LABELS: "label", LOSSES: "loss"}
PLURAL = {OUTPUTS: "outputs", LABELS: "labels and inputs", LOSSES: "losses"}

Tree = tuple[Any, ...]  # names, nested like the net's outputs; `...` may be the last item of any level

NAN = "nan"  # of LabelSpec.missing

PRINTABLE = "of 1 to 200 printable characters"


@dataclass(frozen=True)
class Ref:
    """A reference to an output of the net (`space` is "outputs") or to a slot of the batch ("labels")."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


def is_name(value: object) -> bool:
    """Return whether `value` can be a name, which appears in messages, tables, plots and files."""
    return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable()


def leaves(tree: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield ``(path, leaf)`` of nested tuples and lists in order; `path` holds the indices of the leaf."""
    if isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from leaves(item, (*path, i))
    else:
        yield path, tree


def listed(value: Any) -> tuple[str, ...]:
    """Return a name, several names or None as a tuple of names."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def bare_slots(declared: Iterable[Any], slots: Collection[str]) -> tuple[Any, ...]:
    """Return the names of slots without the prefix ``labels.``, and all other values as they are."""
    short = {f"{LABELS}.{slot}": slot for slot in slots}
    return tuple(short.get(name, name) if isinstance(name, str) else name for name in declared)


def resolve(name: object, spaces: Mapping[str, Sequence[str]]) -> tuple[list[Ref], str | None]:
    """Resolve ``digit``, ``outputs.digit`` or ``labels.digit`` among the valid names of each name space.

    Returns all matches, and an error message if there are none. The nearest valid name then counts as the
    match, so that a typo is reported only once.
    """
    if not isinstance(name, str):
        return [], f"{shown(name)} is not a name; {_valid(spaces)}"
    for space, valid in spaces.items():
        if name.startswith(space + ".") and name[len(space) + 1 :] in valid:
            return [Ref(space, name[len(space) + 1 :])], None
    refs = [Ref(space, name) for space, valid in spaces.items() if name in valid]
    if refs:
        return refs, None
    everything = _everything(spaces)
    near = nearest(name, everything)
    guesses = [Ref(space, near) for space, valid in spaces.items() if near is not None and near in valid]
    kind = " or ".join(SINGULAR[space] for space in spaces)
    return guesses[:1], f"there is no {kind} {quoted([name])}{suggest(name, everything)}; {_valid(spaces)}"


def _everything(spaces: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for valid in spaces.values() for name in valid))


def _valid(spaces: Mapping[str, Sequence[str]]) -> str:
    return f"{', '.join(PLURAL[space] for space in spaces)} are {quoted(_everything(spaces))}"
