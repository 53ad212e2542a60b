"""Format the lines that handlers show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..history import figure_text
from ..protocols import MultiEstimator
from ..stages import split_figure

_WIDTH = 9  # of a figure, so that the figures of successive lines are aligned


def count_text(number: int, total: int | None) -> str:
    """Return ``3/20``, padded to the total's width, or ``3`` if the total is not known."""
    return f"{number}" if total is None else f"{number:{len(str(total))}}/{total}"


def epoch_text(estimator: MultiEstimator, first: int) -> str:
    """Return the current epoch and the last one of this fit, counted over the whole run.

    A second fit of 5 epochs after one of 20 begins with ``epoch 21/25``. `first` is the index of this fit's
    first epoch.
    """
    last = None if estimator.max_epoch is None else first + estimator.max_epoch
    return f"epoch {count_text(estimator.state.epoch + 1, last)}"


def figures_text(figures: Mapping[str, float], pad: int = 0) -> str:
    """Return ``name value  name value``, the values padded to `pad` characters."""
    return "  ".join(f"{name} {figure_text(value).rjust(pad)}" for name, value in figures.items())


def fitting(figures: Mapping[str, float], width: int, pad: int = 0) -> dict[str, float]:
    """Return the first figures whose text has at most `width` characters."""
    shown: dict[str, float] = {}
    for name, value in figures.items():
        if len(figures_text({**shown, name: value}, pad)) > width:
            break
        shown[name] = value
    return shown


def figure_lines(head: str, figures: Mapping[str, float], width: int, wrap: bool = False) -> str:
    """Return `head` and the figures in one line if they fit `width`, or else in one line per stage.

    Figures that belong to no stage, such as learning rates, follow the head. With `wrap`, a stage's figures
    continue on further lines; otherwise, figures that do not fit are left out.
    """
    line = f"{head}  {figures_text(figures, _WIDTH)}"
    if len(line) <= width:
        return line
    staged: dict[str, dict[str, float]] = {}
    for figure, value in figures.items():
        prefix, name = split_figure(figure)
        staged.setdefault(prefix, {})[name] = value
    others = staged.pop("", {})
    shown = fitting(others, width - len(head) - 2)
    lines = [f"{head}  {figures_text(shown)}".rstrip()]
    if wrap:
        rest = {name: value for name, value in others.items() if name not in shown}
        lines += [f"  {text}" for text in _wrapped(rest, width - 2)]
    for prefix, texts in _stage_texts(staged, width - len("  train  "), wrap).items():
        lines += [f"  {prefix:5}  {text}".rstrip() for text in texts]
    return "\n".join(lines)


def _stage_texts(
    stages: Mapping[str, Mapping[str, float]], width: int, wrap: bool
) -> Mapping[str, Sequence[str]]:
    aligned = _aligned(stages)
    if all(len(text) <= width for text in aligned.values()):
        return {prefix: [text] for prefix, text in aligned.items()}
    if wrap:
        return {prefix: _wrapped(values, width) for prefix, values in stages.items()}
    texts = {}
    for prefix, values in stages.items():
        pad = _WIDTH if len(figures_text(values, _WIDTH)) <= width else 0
        texts[prefix] = [figures_text(fitting(values, width, pad), pad)]
    return texts


def _aligned(stages: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return one line per stage, with figures of the same name below each other."""
    names = list(dict.fromkeys(name for values in stages.values() for name in values))
    lines = {}
    for prefix, values in stages.items():
        cells = (
            figures_text({name: values[name]}, _WIDTH) if name in values else " " * (len(name) + 1 + _WIDTH)
            for name in names
        )
        lines[prefix] = "  ".join(cells).rstrip()
    return lines


def _wrapped(figures: Mapping[str, float], width: int) -> list[str]:
    rest, lines = dict(figures), []
    while rest:
        shown = fitting(rest, width, _WIDTH) or dict([next(iter(rest.items()))])
        lines.append(figures_text(shown, _WIDTH))
        rest = {name: value for name, value in rest.items() if name not in shown}
    return lines
