"""Names: trees of them as nets return outputs, and references from losses and metrics to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from ..errors import names as quoted
from ..errors import nearest, shown, suggest

__all__ = ["LOSSES", "OUTPUTS", "SLOTS", "Ref", "leaves", "listed", "resolve"]

OUTPUTS = "outputs"
SLOTS = "labels"
LOSSES = "losses"
SINGULAR = {OUTPUTS: "output", SLOTS: "label", LOSSES: "loss"}
PLURAL = {OUTPUTS: "outputs", SLOTS: "labels and inputs", LOSSES: "losses"}


@dataclass(frozen=True)
class Ref:
    """A reference to an output of the net (`space` is "outputs") or to a slot of the batch ("labels")."""

    space: str
    name: str

    def __str__(self) -> str:
        return f"{self.space}.{self.name}"


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
        Every match, and what is wrong where there is none; then the match is the nearest name, if any: what
        was meant counts as used, so that one slip is one problem.
    """
    for space, known in spaces.items():
        if isinstance(name, str) and name.startswith(space + ".") and name[len(space) + 1 :] in known:
            return [Ref(space, name[len(space) + 1 :])], None
    found = [Ref(space, name) for space, known in spaces.items() if isinstance(name, str) and name in known]
    if found:
        return found, None
    everything = list(dict.fromkeys(one for known in spaces.values() for one in known))
    meant = nearest(name, everything) if isinstance(name, str) else None
    guess = [Ref(space, meant) for space, known in spaces.items() if meant is not None and meant in known]
    what = " or ".join(SINGULAR[space] for space in spaces)
    valid = f"{', '.join(PLURAL[space] for space in spaces)} are {quoted(everything)}"
    if not isinstance(name, str):
        return [], f"{shown(name)} is no name; {valid}"
    return guess[:1], f'there is no {what} "{name}"{suggest(name, everything)}; {valid}'
