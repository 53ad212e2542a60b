"""Pictures of a history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["curves", "new_figure"]


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


def curves(history: Mapping[str, Sequence[float]]) -> Figure:
    """Draw every figure of a history over the epochs.

    One panel for each family: ``train_digit`` and ``val_digit`` are one, and so are the parts of a loss or
    metric (``val_VOC.mAP``, ``val_VOC.cat``) and all learning rates. Training is dashed, validation solid.

    Parameters
    ----------
    history : mapping of str to sequence of float
        Values per epoch by figure, as `History` has them; NaN and infinite values are left out.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``savefig``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    panels = _families({name: list(values) for name, values in history.items() if _measured(values)})
    columns = min(3, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    figure = new_figure(4.4 * columns, 3.1 * rows)
    for number, (family, figures) in enumerate(panels.items(), 1):
        _panel(figure.add_subplot(rows, columns, number), family, figures)
    if not panels:
        figure.text(0.5, 0.5, "nothing was measured", ha="center", va="center")
    return figure


def _measured(values: Sequence[float]) -> bool:
    return any(math.isfinite(value) for value in values)


def _families(history: Mapping[str, list[float]]) -> dict[str, dict[tuple[str, str], list[float]]]:
    """Group the figures: family -> (stage, part) -> values; the learning rates come last."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    for name, values in history.items():
        stage, _, rest = name.partition("_")
        if stage in ("train", "val") and rest:
            family, _, part = rest.partition(".")
            found.setdefault(family, {})[(stage, part)] = values
        else:
            rates[("", rest or name)] = values
    return {**found, "learning rate": rates} if rates else found


def _panel(axes: Any, family: str, figures: Mapping[tuple[str, str], list[float]]) -> None:
    parts = list(dict.fromkeys(part for _, part in figures))
    for (stage, part), values in figures.items():
        epochs = [epoch for epoch, value in enumerate(values, 1) if math.isfinite(value)]
        axes.plot(
            epochs,
            [values[epoch - 1] for epoch in epochs],
            color=f"C{parts.index(part) % 10}",
            linestyle="--" if stage == "train" else "-",
            marker="o" if len(epochs) <= 12 else "",
            markersize=3,
            alpha=0.65 if stage == "train" else 1.0,
            label=" ".join(filter(None, [stage, part])),
        )
    axes.set_title(family, fontsize=11)
    axes.set_xlabel("epoch", fontsize=9)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, ncols=1 + (len(figures) - 1) // 8)
