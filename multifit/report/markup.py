"""HTML and SVG that cannot be broken by what they show: text is escaped unless it is markup already."""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "Node", "join", "tag"]


class Markup(str):
    """Text that is markup, and goes into a page as it is."""

    __slots__ = ()


Node = object  # Markup, or anything whose text is to be shown

_EMPTY = {"img", "meta", "path", "line", "rect", "circle", "polyline", "polygon"}


def join(*nodes: Node) -> Markup:
    """Return the nodes one after the other; None is nothing."""
    return Markup("".join(_text(node) for node in nodes if node is not None))


def tag(element: str, /, *nodes: Node, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    element : str
        Its name.
    *nodes : Markup or object
        What it holds.
    **attributes
        Its attributes; ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``, one that is None is
        left out, and numbers are shortened.
    """
    pairs = ((_key(key), value) for key, value in attributes.items() if value is not None)
    opening = element + "".join(f' {key}="{escape(_value(value))}"' for key, value in pairs)
    if element in _EMPTY and not nodes:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(*nodes)}</{element}>")


def _text(node: Node) -> str:
    return node if isinstance(node, Markup) else escape(str(node))


def _key(key: str) -> str:
    return key.rstrip("_").replace("_", "-") if key != "viewBox" else key


def _value(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
