"""Select figures by name or regular expression."""

from __future__ import annotations

import re
from typing import Iterable, Sequence

__all__ = ["select_figures"]


def select_figures(known: Iterable[str], figures: str | Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Select figures by names or regular expressions.

    Parameters
    ----------
    known : iterable of str
        The names of the figures to select from.
    figures : str or iterable of str, optional
        Names, or regular expressions that match whole names. None selects all.

    Returns
    -------
    selected : list of str
        The selected names, in the order of `known`.
    unmatched : list of str
        The items of `figures` that match nothing.

    Raises
    ------
    ValueError
        An item is neither a known name nor a valid regular expression.
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
