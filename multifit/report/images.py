"""Images that are part of the page, as data URLs."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

from ..plots import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Image:
    """An image of the page."""

    name: str  # the caption, or the text for readers who cannot see the image
    source: str  # a data URL


def png_image(name: str, data: bytes) -> Image:
    """Return a PNG file as an image."""
    return Image(name, _data_url("image/png", data))


def curves_image(draw: Callable[[], Figure]) -> Image | None:
    """Return the figure that `draw` returns as an SVG image, or None without matplotlib."""
    try:
        figure = draw()
    except ImportError:
        return None
    return Image("the figures over the epochs", _data_url("image/svg+xml", to_svg(figure)))


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
