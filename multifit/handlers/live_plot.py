"""Draw the curves anew after each epoch."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

from ..errors import names, suggest
from ..events import EstimatorProtocol, Priority
from ..files import atomic_write
from ..plots import chosen, curves

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
        self.figures = figures if figures is None or isinstance(figures, str) else list(figures)
        chosen([], self.figures)
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
        """Say which of the figures there never were."""
        history = estimator.history
        missing = chosen(history, self.figures)[1]
        if missing and history and not self._idle:
            near = suggest(missing[0], history)
            estimator.logger.warning(
                "LivePlot: no figure %s%s; there are %s", names(missing), near, names(history)
            )

    def _draw(self, estimator: EstimatorProtocol) -> None:
        history = estimator.history
        # a figure may come later: validation begins in its own time
        found = chosen(history, self.figures)[0]
        data = io.BytesIO()
        curves({name: history[name] for name in found}).savefig(data, format="png", dpi=100)
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
