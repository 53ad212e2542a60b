"""Names: trees of them as nets return outputs, and references from losses and metrics to outputs and slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from ..errors import names as quoted
from ..errors import suggest

__all__ = ["OUTPUTS", "SLOTS", "Ref", "as_tree", "leaves", "listed", "resolve"]

OUTPUTS = "outputs"
SLOTS = "labels"


@dataclass(frozen=True)
class Ref:
    """A reference to an output of the net (``space == "outputs"``) or to a slot of the batch (``"labels"``)."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


def as_tree(declared: Any) -> Any:
    """Return `declared` (a name, or nested sequences of names) as nested tuples; a single name as a 1-tuple."""
    if isinstance(declared, (str, bytes)) or not isinstance(declared, (list, tuple)):
        declared = (declared,)
    return tuple(as_tree(item) if isinstance(item, (list, tuple)) else item for item in declared)


def leaves(tree: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield ``(path, leaf)`` of nested tuples, lists in order; `path` holds the indices that lead to the leaf."""
    if isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from leaves(item, (*path, i))
    else:
        yield path, tree


def listed(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return a name, several names or None as a tuple of names."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) or not isinstance(value, (list, tuple)) else tuple(value)


def resolve(name: Any, spaces: Mapping[str, Sequence[str]]) -> tuple[list[Ref], str | None]:
    """Find what a possibly qualified name refers to.

    Parameters
    ----------
    name : str
        ``digit``, ``outputs.digit`` or ``labels.digit``.
    spaces : mapping of str to sequence of str
        The names that are valid in each name space.

    Returns
    -------
    list of Ref, str or None
        Every match, and what is wrong where there is none.
    """
    for space, valid in spaces.items():
        if isinstance(name, str) and name.startswith(space + ".") and name[len(space) + 1 :] in valid:
            return [Ref(space, name[len(space) + 1 :])], None
    found = [Ref(space, name) for space, valid in spaces.items() if name in valid]
    if found:
        return found, None
    everything = list(dict.fromkeys(valid for space in spaces.values() for valid in space))
    what = " or ".join(space[:-1] for space in spaces)
    return [], f'there is no {what} "{name}"{suggest(name, everything)}; declared are {quoted(everything)}'
