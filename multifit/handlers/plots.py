"""Plots by matplotlib: curves of one run's figures or several, what tasks do, and what a net confuses."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ..utils.stages import EVALUATE, PREFIXES, TRAIN, figure_name, split_figure
from ..utils.text import quoted, suggest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNING_RATE, LENGTHS = "learning rate", "lengths of gradients"  # titles of panels
Figures = Mapping[str, Sequence[float]]  # the values per epoch of each figure
Family = dict[tuple[str, str], Sequence[float]]  # the figures of one panel by (prefix, part)

COLUMNS = 3
LARGEST = 1e300  # matplotlib computes with sums and multiples of the values
MANY = 8  # a longer legend goes below the axes
# Okabe and Ito's palette for all kinds of colour vision, its yellow darkened to be seen on white
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6a00", "#000000")
MARKERS = ["", "o", "s", "^", "D", "v", "P", "X", "*", "<", ">"]  # one for each round of colours
MANY_CLASSES, MANY_TICKS = 20, 30  # more numbers and names cannot be read in a matrix
WRITTEN = 8  # with at most this many tasks, every cosine is written into the map


@dataclass(frozen=True)
class Line:
    """One line of a panel; values that cannot be drawn are left out."""

    label: str
    values: Sequence[float]  # one per epoch
    style: int  # colour and marker; lines of equal style look alike, unless only one is dashed
    dashed: bool  # and pale, as training is


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, sizes in inches, that belongs to no window.

    Raises ImportError without matplotlib, or with one that its environment keeps from being imported.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from error
    except ValueError as error:  # matplotlib reads the environment when it is imported
        raise ImportError(f"matplotlib cannot be imported, perhaps because of MPLBACKEND: {error}") from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))  # between rows of axes


def to_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG file. Equal figures give equal files."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.hashsalt": "multifit"}):  # by default, every file has ids of its own
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()


def data_url(media_type: str, data: bytes) -> str:
    """Return the address of an image in HTML that holds its file."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def can_draw(value: float) -> bool:
    """Return whether a value is a number that matplotlib can draw."""
    return abs(value) <= LARGEST  # NaN is not


def draw(panels: Mapping[str, Sequence[Line]]) -> Figure:
    """Draw the lines of each panel, by its title, in a grid; ImportError without matplotlib."""
    columns = min(COLUMNS, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    below = [math.ceil(len(lines) / 3) for lines in panels.values() if len(lines) > MANY]  # rows of legends
    figure = new_figure(4.4 * columns, (3.1 + 0.15 * max(below, default=0)) * rows)
    for number, (title, lines) in enumerate(panels.items(), 1):
        draw_panel(figure.add_subplot(rows, columns, number), title, lines)
    if not panels:
        figure.text(0.5, 0.5, "nothing was measured", ha="center", va="center")
    return figure


def draw_panel(axes: Axes, title: str, lines: Sequence[Line]) -> None:
    """Draw lines over the epochs, with a legend."""
    styles = len({line.style for line in lines})
    for line in lines:
        _draw_line(axes, line, styles)
    _label(axes, title, "epoch", "")
    axes.locator_params(axis="x", integer=True)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) <= MANY:
        legend = axes.legend(fontsize=7, frameon=False)
    else:
        legend = axes.legend(
            fontsize=6, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18)
        )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_line(axes: Axes, line: Line, styles: int) -> None:
    epochs = [epoch for epoch, value in enumerate(line.values, 1) if can_draw(value)]
    marker_round, colour = divmod(line.style, len(COLOURS))
    few = len(epochs) <= 12 and styles <= len(COLOURS)
    axes.plot(
        epochs,
        [line.values[epoch - 1] for epoch in epochs],
        color=COLOURS[colour],
        linestyle="--" if line.dashed else "-",
        marker=MARKERS[marker_round % len(MARKERS)] or ("o" if few else ""),
        markevery=max(1, len(epochs) // 12),
        markersize=3,
        alpha=0.65 if line.dashed else 1.0,
        label=line.label if not line.label.startswith("_") else f" {line.label}",  # legends hide "_..."
    )


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
    """Group the measured figures by panel. Those of no stage keep their names; learning rates come last.

    Figures of a set for validation, such as ``val_noisy_loss``, are drawn with those of training.
    """
    trained = [figure for prefix, figure in map(split_figure, history) if prefix == PREFIXES[TRAIN]]
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
        ends = [each for each in trained if figure.endswith(f"_{each}")] if figure not in trained else []
        rest = max(ends, key=len, default=figure)
        title, _, part = rest.partition(".") if prefix else (name, "", "")
        own = figure[: -len(rest) - 1] if prefix else ""
        families.setdefault(title, {})[prefix, _joined(own, part)] = values
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


def task_figures(history: Figures) -> list[str]:
    """Return the names of the figures that `task_curves` draws, none if tasks were not compared."""
    panels, cosines = _task_panels(history)
    return [*(name for figures in panels.values() for name in figures.values()), *cosines.values()]


def task_curves(history: Figures) -> Figure:
    """Draw weights, lengths of gradients and the share of conflicts over the epochs, and a map of cosines.

    The map has the cosines of the last epoch in which they were measured, and a dash for tasks that were
    never compared. Raises ImportError without matplotlib.
    """
    panels, named = _task_panels(history)
    measured = {pair: [v for v in history[name] if math.isfinite(v)] for pair, name in named.items()}
    cosines = {pair: values[-1] if values else math.nan for pair, values in measured.items()}
    count = len(panels) + bool(cosines)
    figure = new_figure(4.4 * count, 3.4)
    for number, (title, figures) in enumerate(panels.items(), 1):
        lines = [Line(task, history[name], i, False) for i, (task, name) in enumerate(figures.items())]
        draw_panel(figure.add_subplot(1, count, number), title, lines)
    if cosines:
        _draw_map(figure.add_subplot(1, count, count), list(panels[LENGTHS]), cosines)
    return figure


def _task_panels(history: Figures) -> tuple[dict[str, dict[str, str]], dict[tuple[str, str], str]]:
    """Return the figures of each panel by task, and those of the map of cosines by pairs of tasks."""
    norms = _by_task(history, "gradnorm")
    panels = {"weights": _by_task(history, "weight"), LENGTHS: norms}
    conflict = figure_name(TRAIN, "conflict")
    if norms and conflict in history:
        panels["share of pairs that conflict"] = {"conflict": conflict}
    pairs = {(a, b): figure_name(TRAIN, f"cosine_{a}_{b}") for a, b in combinations(norms, 2)}
    cosines = {pair: name for pair, name in pairs.items() if name in history}
    return {title: figures for title, figures in panels.items() if figures}, cosines


def _by_task(history: Figures, kind: str) -> dict[str, str]:
    """Return the figures of a kind that only training has, by task; none unless there are several tasks."""
    start, evaluated = figure_name(TRAIN, f"{kind}_"), figure_name(EVALUATE, f"{kind}_")
    tasks = {name[len(start) :]: name for name in history if name.startswith(start)}
    tasks = {task: name for task, name in tasks.items() if evaluated + task not in history}
    return tasks if len(tasks) > 1 else {}


def _draw_map(axes: Axes, tasks: Sequence[str], cosines: Mapping[tuple[str, str], float]) -> None:
    rows = [
        [1.0 if a == b else cosines.get((a, b), cosines.get((b, a), math.nan)) for b in tasks] for a in tasks
    ]
    axes.set_facecolor("0.75")  # grey is not in the colour map: no cosine here
    image = axes.imshow(rows, cmap="RdBu", vmin=-1, vmax=1)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    axes.set_title("cosines of gradients", fontsize=11)
    axes.set_xticks(range(len(tasks)), tasks, rotation=45, ha="right", fontsize=8, parse_math=False)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=8, parse_math=False)
    for y, row in enumerate(rows if len(tasks) <= WRITTEN else ()):
        for x, value in enumerate(row):
            colour = "white" if abs(value) > 0.6 else "black"
            text = "-" if math.isnan(value) else f"{value:.2f}"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)


def draw_confusion(title: str, counts: Any, names: Sequence[str] | None = None) -> Figure:
    """Draw a confusion matrix, a row per label; without numbers if there are more than 20 classes.

    Counts of 10,000 and more are written as shares. Raises ImportError without matplotlib.
    """
    classes = len(counts)
    names = [str(number) for number in range(classes)] if names is None else list(names)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(1)
    size = min(2.8 + 0.4 * classes, 9.0)
    figure = new_figure(size + 1.2, size)
    from matplotlib.colors import PowerNorm

    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))  # shows a few confusions, too
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("share of the label", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    right = f"{counts.trace() / max(counts.sum(), 1):.1%} of {counts.sum():,} right"
    _label(axes, f"{title}: {right}", "prediction", "label")
    shown = range(0, classes, math.ceil(classes / MANY_TICKS))
    texts = [names[at] for at in shown]
    turn, side = (45, "right") if max(map(len, texts)) > 2 else (0, "center")
    axes.set_xticks(shown, texts, fontsize=8, rotation=turn, ha=side, parse_math=False)
    axes.set_yticks(shown, texts, fontsize=8, parse_math=False)
    for row, column in zip(*counts.nonzero()) if classes <= MANY_CLASSES else ():
        share = shares[row, column]
        text = f"{counts[row, column]}" if counts.max() < 10_000 else f"{share:.0%}"
        colour = "white" if share > 0.3 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=min(8, 120 / classes), color=colour)
    return figure


def draw_scatter(title: str, labels: Any, predictions: Any) -> Figure:
    """Draw predictions over labels, beside the line where they are equal; ImportError without matplotlib."""
    pairs = [pair for pair in zip(labels, predictions) if all(map(can_draw, pair))]
    figure = new_figure(4.4, 4.0)
    axes = figure.add_subplot()
    ends = [min(map(min, pairs), default=0), max(map(max, pairs), default=1)]
    axes.plot(ends, ends, "--", color="black", linewidth=1)
    x, y = zip(*pairs) if pairs else ((), ())
    axes.scatter(x, y, s=10, color=COLOURS[0], alpha=0.5, linewidths=0)
    _label(axes, f"{title}: {len(pairs):,} values", "label", "prediction")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11, parse_math=False)  # names may hold a $
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
