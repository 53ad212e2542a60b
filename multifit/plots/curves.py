"""Select figures, and draw those of one run, or of several, over the epochs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Iterable, Mapping, Sequence

from ..errors import quoted, suggest
from ..stages import PREFIXES, TRAIN, split_figure
from .panels import Line, can_draw, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNING_RATE = "learning rate"
Figures = Mapping[str, Sequence[float]]  # the values per epoch of each figure
Family = dict[tuple[str, str], Sequence[float]]  # the figures of one panel by (prefix, part)


def curves(history: Figures, figures: str | Iterable[str] | None = None) -> Figure:
    """Draw the figures of a history over the epochs.

    There is one panel per family: ``train_digit`` and ``val_digit`` share one, as do the parts of a loss or
    metric (``val_VOC.mAP``, ``val_VOC.cat``) and all learning rates, ``lr`` and ``lr_body``. Training is
    dashed, validation solid. A part has the same colour in both. From the ninth part on, markers tell equal
    colours apart.

    Parameters
    ----------
    history : mapping of str to sequence of float
        Values per epoch by figure, such as a `History`. NaN, infinite values and those beyond 1e300 are left
        out.
    figures : str or iterable of str, optional
        The figures to draw: names, or regular expressions that match whole names, such as ``".*_loss"``.
        None draws all.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        An item of `figures` matches no figure of the history, or is not a valid regular expression.
    """
    selected, unmatched = select_figures(history, figures)
    if unmatched:
        raise ValueError(
            f"curves: no figure {quoted(unmatched)}{suggest(unmatched[0], history)}; "
            f"there are {quoted(history)}"
        )
    families = _families({name: history[name] for name in selected})
    return draw({title: _lines(title, family) for title, family in families.items()})


def compare_curves(histories: Mapping[str, Figures]) -> Figure:
    """Draw the figures of several runs over the epochs, one panel per figure and one colour per run.

    Raises ImportError without matplotlib.
    """
    panels: dict[str, list[Line]] = {}
    for style, (run, history) in enumerate(histories.items()):
        for title, family in _families(history).items():
            for (prefix, part), values in family.items():
                figure = _joined(title, part, " " if title == LEARNING_RATE else ".")
                line = Line(_joined(prefix, run), values, style, prefix == PREFIXES[TRAIN])
                panels.setdefault(figure, []).append(line)
    return draw(panels)


def select_figures(known: Iterable[str], figures: str | Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Return the known names that `figures` selects, in their order, and the items that match nothing.

    An item is a name, or a regular expression that matches whole names. None selects all. Raises ValueError
    if an item is not a valid regular expression.
    """
    known = list(known)
    if figures is None:
        return known, []
    patterns = [figures] if isinstance(figures, str) else list(figures)
    matches = {pattern: _matches(pattern, known) for pattern in patterns}
    selected = {name for names in matches.values() for name in names}
    return [name for name in known if name in selected], [each for each in patterns if not matches[each]]


def _families(history: Figures) -> dict[str, Family]:
    """Group the measured figures by panel. Those of no stage keep their names; learning rates come last."""
    families: dict[str, Family] = {}
    rates: Family = {}
    for name, values in history.items():
        if not any(map(can_draw, values)):
            continue
        prefix, figure = split_figure(name)
        kind, _, trainer = name.partition("_")
        if kind == "lr":
            rates["", trainer or name] = values
            continue
        title, _, part = figure.partition(".") if prefix else (name, "", "")
        families.setdefault(title, {})[prefix, part] = values
    if rates:
        families.setdefault(LEARNING_RATE, {}).update(rates)
    return families


def _lines(title: str, family: Family) -> list[Line]:
    # A figure without a stage gets another colour than figures with the same name after train_ or val_.
    styles = [(bool(prefix), part) for prefix, part in family]
    distinct = list(dict.fromkeys(styles))
    return [
        Line(_joined(prefix, part) or title, values, distinct.index(style), prefix == PREFIXES[TRAIN])
        for style, ((prefix, part), values) in zip(styles, family.items())
    ]


def _joined(first: str, second: str, separator: str = " ") -> str:
    return separator.join(filter(None, [first, second]))


def _matches(pattern: str, known: Sequence[str]) -> list[str]:
    if pattern in known:  # a name such as VOC.mAP would match more as a regular expression
        return [pattern]
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(f'figures: "{pattern}" is not a valid regular expression: {error}') from None
    return [name for name in known if expression.fullmatch(name)]
