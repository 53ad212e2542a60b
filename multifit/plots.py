"""Pictures of a history."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

from .errors import names, suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["chosen", "curves", "families", "new_figure"]

Family = dict[tuple[str, str], list[float]]  # the curves of a panel: (stage, part) -> values

_FEW = 8  # lines that a legend within the axes may hold
_MARKERS = ["", "o", "s", "^", "D", "v", "P", "X", "*", "<", ">"]  # ten colours each


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure that belongs to no window.

    Parameters
    ----------
    width, height : float
        Inches.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "multifit[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def curves(history: Mapping[str, Sequence[float]], figures: str | Iterable[str] | None = None) -> Figure:
    """Draw the figures of a history over the epochs.

    One panel for each family: ``train_digit`` and ``val_digit`` are one, and so are the parts of a loss or
    metric (``val_VOC.mAP``, ``val_VOC.cat``) and all learning rates. Training is dashed, validation solid; a
    part has the same colour in both, and from the eleventh part on a marker tells equal colours apart.

    Parameters
    ----------
    history : mapping of str to sequence of float
        Values per epoch by figure, as `History` has them; NaN and infinite values are left out.
    figures : str or iterable of str, optional
        Which ones: names, or regular expressions that match whole names, such as ``".*_loss"``; None: all.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        One of `figures` fits no figure of the history, or is no regular expression.
    """
    found, missing = chosen(history, figures)
    if missing:
        raise ValueError(
            f"curves: no figure {names(missing)}{suggest(missing[0], history)}; there are {names(history)}"
        )
    panels = families({name: history[name] for name in found if _measured(history[name])})
    columns = min(3, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    beneath = max((_legend_rows(len(family)) for family in panels.values()), default=0)
    figure = new_figure(4.4 * columns, (3.1 + 0.15 * beneath) * rows)
    for number, (title, family) in enumerate(panels.items(), 1):
        _panel(figure.add_subplot(rows, columns, number), title, family)
    if not panels:
        figure.text(0.5, 0.5, "nothing was measured", ha="center", va="center")
    return figure


def chosen(known: Iterable[str], figures: str | Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Return which figures are meant, in their own order, and what of `figures` fits none.

    Parameters
    ----------
    known : iterable of str
        The figures that there are.
    figures : str or iterable of str, optional
        Names or regular expressions; None: all.

    Raises
    ------
    ValueError
        One is neither a known name nor a regular expression.
    """
    known = list(known)
    if figures is None:
        return known, []
    wanted = [figures] if isinstance(figures, str) else list(figures)
    fits = {each: _fits(each, known) for each in wanted}
    found = {name for every in fits.values() for name in every}
    return [name for name in known if name in found], [each for each in wanted if not fits[each]]


def families(history: Mapping[str, Sequence[float]]) -> dict[str, Family]:
    """Group figures that belong in one panel: family -> (stage, part) -> values; learning rates come last.

    The stage is "train", "val" or, for what belongs to none, empty; a figure without parts has the part "".
    """
    found: dict[str, Family] = {}
    rates: Family = {}
    for name, values in history.items():
        stage, _, rest = name.partition("_")
        if stage in ("train", "val") and rest:
            family, _, part = rest.partition(".")
            found.setdefault(family, {})[(stage, part)] = list(values)
        else:
            rates[("", rest or name)] = list(values)
    return {**found, "learning rate": rates} if rates else found


def _fits(wanted: str, known: Sequence[str]) -> list[str]:
    if wanted in known:  # a name may hold what means something else in a pattern: VOC.mAP
        return [wanted]
    try:
        pattern = re.compile(wanted)
    except re.error as error:
        raise ValueError(f'figures: "{wanted}" is no regular expression: {error}') from None
    return [name for name in known if pattern.fullmatch(name)]


def _measured(values: Sequence[float]) -> bool:
    return any(math.isfinite(value) for value in values)


def _legend_rows(lines: int) -> int:
    return 0 if lines <= _FEW else math.ceil(lines / 3)


def _panel(axes: Any, title: str, family: Family) -> None:
    parts = list(dict.fromkeys(part for _, part in family))
    for (stage, part), values in family.items():
        epochs = [epoch for epoch, value in enumerate(values, 1) if math.isfinite(value)]
        round_, colour = divmod(parts.index(part), 10)
        axes.plot(
            epochs,
            [values[epoch - 1] for epoch in epochs],
            color=f"C{colour}",
            linestyle="--" if stage == "train" else "-",
            marker=_MARKERS[round_ % len(_MARKERS)]
            or ("o" if len(epochs) <= 12 and len(parts) <= 10 else ""),
            markevery=max(1, len(epochs) // 12),
            markersize=3,
            alpha=0.65 if stage == "train" else 1.0,
            label=" ".join(filter(None, [stage, part])),
        )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("epoch", fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(family) <= _FEW:
        axes.legend(fontsize=7, frameon=False)
    else:  # so many would hide the curves
        axes.legend(fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
