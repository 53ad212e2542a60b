"""How the handlers that show something word it."""

from __future__ import annotations

from collections.abc import Mapping

from ..events import Running
from ..history import figure_text

__all__ = ["epoch_text", "figures_text", "of_text", "report_text"]

LINE = 110  # characters: what is longer is broken up by stage


def of_text(number: int, total: int | None) -> str:
    """Return ``3/20``, the number aligned to the total's width, or ``3`` where there is no total."""
    return f"{number}" if total is None else f"{number:{len(str(total))}}/{total}"


def epoch_text(estimator: Running, nth: int) -> str:
    """Return the epoch of the run, counted from 1, and the one that ends this fit.

    Parameters
    ----------
    estimator : Running
        A second fit of 5 epochs after one of 20 shows ``epoch 21/25``.
    nth : int
        Which epoch of this fit it is, from 1.
    """
    epoch = estimator.state.epoch + 1
    last = None if estimator.max_epoch is None else epoch - nth + estimator.max_epoch
    return f"epoch {of_text(epoch, last)}"


def figures_text(figures: Mapping[str, float], width: int = 0) -> str:
    """Return ``name value  name value``, the values padded to `width`."""
    return "  ".join(f"{name} {figure_text(value).rjust(width)}" for name, value in figures.items())


def report_text(head: str, figures: Mapping[str, float], width: int = 0) -> str:
    """Return `head` and the figures in one line where they fit, else with a line for each stage.

    The stages' lines show their figures without prefix, so that training and validation stand aligned.
    """
    line = f"{head}  {figures_text(figures, width)}"
    if len(line) <= LINE:
        return line
    lines = [head]
    for stage in ("train", "val"):
        own = {n.partition("_")[2]: value for n, value in figures.items() if n.startswith(stage + "_")}
        lines += [f"  {stage:5}  {figures_text(own, width)}"] if own else []
    rest = {n: value for n, value in figures.items() if not n.startswith(("train_", "val_"))}
    lines[0] += f"  {figures_text(rest)}" if rest else ""
    return "\n".join(lines)
