"""Make matplotlib figures, and convert them to SVG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure, sizes in inches, that belongs to no window.

    Raises ImportError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "multifit[plot]"') from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))  # between rows of axes


def to_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG file. Equal figures give equal files."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.hashsalt": "multifit"}):  # by default, every file has ids of its own
        figure.savefig(data, format="svg", metadata={"Date": None})
    return data.getvalue()
