"""Redraw the curves after each epoch."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any, Callable, Optional

from ..arguments import PathLike, Patterns, checked
from ..events import Handler, Priority
from ..files import atomic_write
from ..output import in_notebook
from ..plots import curves
from ..protocols import MultiEstimator
from .figure_choice import FigureChoice


class LivePlot(Handler):
    """Plots the figures over the epochs at the end of each epoch, in a notebook and into a PNG.

    Outside a notebook, it does nothing unless it has a `path`. If it cannot draw (no matplotlib, a full
    disk), it logs one warning, and the training goes on without plots. ``Every(5, "epoch", LivePlot())``
    draws less often.

    Parameters
    ----------
    figures : str or iterable of str, optional
        The figures to plot: names, or regular expressions that match whole names, such as ``"val_.*"``.
        Defaults to all. Those that match no figure of the fit are named in a warning at its end.
    path : str or path, optional
        The PNG file, which is replaced atomically.
    display : callable, optional
        Called as ``display(picture, display_id=True)``; returns an object with ``update(picture)``. Defaults
        to `IPython.display.display` in a notebook.

    Raises
    ------
    ValueError
        One of `figures` is not a valid regular expression.
    """

    priority = Priority.LOGGING
    first_rank_only = True  # where several processes train together

    @checked
    def __init__(
        self,
        figures: Optional[Patterns] = None,
        path: Optional[PathLike] = None,
        display: Optional[Callable[..., Any]] = None,
    ) -> None:
        self._choice = FigureChoice(figures)
        self.figures = self._choice.patterns
        self.path = None if path is None else Path(path)
        self._display = display

    def train_begin(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Start a new picture."""
        self._show = _notebook() if self._display is None else self._display
        self._shown: Any = None
        self._idle = self.path is None and self._show is None

    def epoch_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Plot the figures measured so far."""
        if self._idle:
            return
        try:
            self._draw(estimator)
        except (ImportError, OSError) as error:
            self._idle = True
            estimator.logger.warning("LivePlot: %s; training continues without it", error)

    def train_end(self, estimator: MultiEstimator, **arguments: Any) -> None:
        """Warn about figures that were never measured."""
        warning = self._choice.warning(estimator.history)
        if warning is not None and not self._idle:
            estimator.logger.warning("LivePlot: %s", warning)

    def _draw(self, estimator: MultiEstimator) -> None:
        history = estimator.history
        # Match again at each epoch: some figures are not measured in the first ones.
        shown = {name: history[name] for name in self._choice.matching(history)}
        data = io.BytesIO()
        curves(shown).savefig(data, format="png", dpi=100)
        if self.path is not None:
            atomic_write(self.path, data.getvalue())
        if self._shown is not None:
            self._shown.update(_Picture(data.getvalue()))
        elif self._show is not None:
            self._shown = self._show(_Picture(data.getvalue()), display_id=True)


class _Picture:
    """A PNG that notebooks can show; matplotlib's own figures would need its inline backend."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _repr_png_(self) -> bytes:
        return self._data


def _notebook() -> Callable[..., Any] | None:
    """Return IPython's display function in a notebook, and None elsewhere."""
    if not in_notebook():
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display
