"""The plan as a diagram: inputs, net, outputs, losses and metrics, labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..plan import StagePlan, TrainerPlan
from .boxes import COLUMNS, GAP, Box, net_boxes, place, stack, stage_boxes

TITLES = {
    "input": "inputs",
    "net": "net",
    "output": "outputs",
    "term": "losses and metrics",
    "label": "labels",
}


@dataclass(frozen=True)
class Arrow:
    """An arrow between two boxes."""

    path: str  # the line and the arrowhead, as in SVG
    normalises: bool = False  # whether the label is a loss's normalizer


@dataclass(frozen=True)
class Diagram:
    """The content of a diagram, which its template draws."""

    width: float
    height: float  # without the row of titles
    net: tuple[float, float]  # left edge and width
    titles: Sequence[tuple[float, str]]  # the middle and the text of each column's title
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


def diagram(stage: StagePlan, trainers: Sequence[TrainerPlan] = (), frozen: Sequence[str] = ()) -> Diagram:
    """Return the diagram of a stage, with its trainers and frozen parameters inside the net."""
    boxes, inner = stage_boxes(stage), net_boxes(trainers, frozen)
    inner_height = sum(box.height + GAP for box in inner)
    height = place(list(boxes.values()), inner_height + GAP)
    stack(inner, (height - inner_height + GAP) / 2, GAP)
    return Diagram(
        width=max(x + width for x, width in COLUMNS.values()),
        height=height,
        net=COLUMNS["net"],
        titles=[(x + width / 2, TITLES[column]) for column, (x, width) in COLUMNS.items()],
        boxes=[*boxes.values(), *inner],
        arrows=[*_net_arrows(boxes.values()), *_link_arrows(boxes, stage)],
    )


def _net_arrows(boxes: Iterable[Box]) -> Iterator[Arrow]:
    left, width = COLUMNS["net"]
    for box in boxes:
        if box.column == "input":
            yield Arrow(_arrow(box.right, box.middle, left, box.middle))
        if box.column == "output":
            yield Arrow(_arrow(left + width, box.middle, box.x, box.middle))


def _link_arrows(boxes: Mapping[tuple[str, str], Box], stage: StagePlan) -> Iterator[Arrow]:
    for what, name, to, target, how in stage.links:
        source, end = boxes["label" if what == "input" else what, name], boxes[to, target]
        if source.column == "output":
            path = _arrow(source.right, source.middle, end.x, end.middle)
        elif source.column == "label":
            path = _arrow(source.x, source.middle, end.right, end.middle)
        else:  # the metric of a loss is in the loss's column
            path = _bow(end.x, source.middle, end.middle)
        yield Arrow(path, normalises=how != "feeds")


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    half = (x1 + x2) / 2
    curve = f"M{x1:g},{y1:.1f} C{half:g},{y1:.1f} {half:g},{y2:.1f} {x2:g},{y2:.1f}"
    return f"{curve} {_arrowhead(x2, y2, 6 if x2 > x1 else -6)}"


def _bow(x: float, y1: float, y2: float) -> str:
    bend = x - 26
    return f"M{x:g},{y1:.1f} C{bend:g},{y1:.1f} {bend:g},{y2:.1f} {x:g},{y2:.1f} {_arrowhead(x, y2, 6)}"


def _arrowhead(x: float, y: float, length: float) -> str:
    return f"M{x - length:g},{y - 3.5:.1f} L{x:g},{y:.1f} L{x - length:g},{y + 3.5:.1f}"
