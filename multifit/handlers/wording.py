"""How the handlers that show something word it."""

from __future__ import annotations

from collections.abc import Mapping

from ..events import EstimatorProtocol
from ..history import figure_text

__all__ = ["epoch_text", "figures_text", "of_text", "report_text"]

LINE = 110  # characters: what is longer is broken up by stage


def of_text(number: int, total: int | None) -> str:
    """Return ``3/20``, the number aligned to the total's width, or ``3`` where there is no total."""
    return f"{number}" if total is None else f"{number:{len(str(total))}}/{total}"


def epoch_text(estimator: EstimatorProtocol, first: int) -> str:
    """Return the epoch of the run, counted from 1, and the one that ends this fit.

    Parameters
    ----------
    estimator : EstimatorProtocol
        A second fit of 5 epochs after one of 20 shows ``epoch 21/25``.
    first : int
        Index of the epoch with which this fit began.
    """
    last = None if estimator.max_epoch is None else first + estimator.max_epoch
    return f"epoch {of_text(estimator.state.epoch + 1, last)}"


def figures_text(figures: Mapping[str, float], width: int = 0) -> str:
    """Return ``name value  name value``, the values padded to `width`."""
    return "  ".join(f"{name} {figure_text(value).rjust(width)}" for name, value in figures.items())


def report_text(head: str, figures: Mapping[str, float], width: int = 0) -> str:
    """Return `head` and the figures in one line where they fit, else with a line for each stage.

    The stages' lines show their figures without prefix, each in a column of its own, so that training and
    validation stand aligned; what a stage lacks is left blank.
    """
    line = f"{head}  {figures_text(figures, width)}"
    if len(line) <= LINE:
        return line
    stages = {stage: _without_prefix(figures, f"{stage}_") for stage in ("train", "val")}
    names = list(dict.fromkeys(name for own in stages.values() for name in own))
    lines = [head]
    for stage, own in stages.items():
        cells = [_cell(name, own, width) for name in names]
        lines += [f"  {stage:5}  {'  '.join(cells)}".rstrip()] if own else []
    rest = {n: value for n, value in figures.items() if not n.startswith(("train_", "val_"))}
    lines[0] += f"  {figures_text(rest)}" if rest else ""
    return "\n".join(lines)


def _without_prefix(figures: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name[len(prefix) :]: value for name, value in figures.items() if name.startswith(prefix)}


def _cell(name: str, figures: Mapping[str, float], width: int) -> str:
    return figures_text({name: figures[name]}, width) if name in figures else " " * (len(name) + 1 + width)
