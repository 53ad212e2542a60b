"""Select figures by name or regular expression."""

from __future__ import annotations

import re
from typing import Iterable, Sequence


def select_figures(known: Iterable[str], figures: str | Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Return the known names that `figures` selects, in their order, and the items that match nothing.

    An item is a name, or a regular expression that matches whole names, else ValueError is raised; None
    selects all.
    """
    known = list(known)
    if figures is None:
        return known, []
    patterns = [figures] if isinstance(figures, str) else list(figures)
    matches = {pattern: _matches(pattern, known) for pattern in patterns}
    selected = {name for names in matches.values() for name in names}
    return [name for name in known if name in selected], [each for each in patterns if not matches[each]]


def _matches(pattern: str, known: Sequence[str]) -> list[str]:
    if pattern in known:  # a name such as VOC.mAP would match more as a regular expression
        return [pattern]
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f'figures: "{pattern}" is not a valid regular expression: {error}') from None
    return [name for name in known if expression.fullmatch(name)]
