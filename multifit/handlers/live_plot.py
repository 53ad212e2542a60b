"""Draw the curves anew after each epoch."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from ..events import EstimatorProtocol, Priority
from ..files import atomic_write
from ..plots import curves
from .figure_choice import FigureChoice

__all__ = ["LivePlot"]


class LivePlot:
    """Draws the figures over the epochs at each epoch's end: in a notebook in place, and into a PNG.

    Where there is neither a notebook nor a `path`, it does nothing. What goes wrong with the drawing (no
    matplotlib, a full disk) is one warning in the log, and the training goes on without. ``Every(5, "epoch",
    LivePlot())`` draws less often.

    Parameters
    ----------
    figures : str or iterable of str, optional
        Which ones: names, or regular expressions that match whole names, such as ``"val_.*"``; None: all.
        One that fits nothing until the end is a warning then.
    path : str or path, optional
        A PNG, replaced in one step.
    display : callable, optional
        Called as ``display(picture, display_id=True)``, as `IPython.display.display` is; what it returns has
        ``update(picture)``. None: IPython's own, in a notebook.

    Raises
    ------
    ValueError
        One of `figures` is no regular expression.
    """

    priority = Priority.LOGGING

    def __init__(
        self,
        figures: str | Iterable[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        display: Callable[..., Any] | None = None,
    ) -> None:
        self._choice = FigureChoice(figures)
        self.figures = self._choice.patterns
        self.path = None if path is None else Path(path)
        self._display = display

    def train_begin(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Begin a new picture."""
        self._show = self._display or _notebook()
        self._shown: Any = None
        self._idle = self.path is None and self._show is None

    def epoch_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Draw what was measured up to here."""
        if self._idle:
            return
        try:
            self._draw(estimator)
        except (ImportError, OSError) as error:
            self._idle = True
            estimator.logger.warning("LivePlot: %s; the training goes on without", error)

    def train_end(self, estimator: EstimatorProtocol, **facts: Any) -> None:
        """Warn about figures that were never measured."""
        warning = self._choice.warning(estimator.history)
        if warning is not None and not self._idle:
            estimator.logger.warning("LivePlot: %s", warning)

    def _draw(self, estimator: EstimatorProtocol) -> None:
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
    """A PNG, as notebooks show it: matplotlib's own figures need its inline backend."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _repr_png_(self) -> bytes:
        return self._data


def _notebook() -> Callable[..., Any] | None:
    """Return IPython's display in a notebook, else None."""
    ipython = sys.modules.get("IPython")  # a notebook has it imported already
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display
