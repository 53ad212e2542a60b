"""The boxes of the plan's diagram, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import counted
from ..plan import StagePlan, TrainerPlan
from .box import GAP, Box, wrap

__all__ = ["net_boxes", "place", "stack", "stage_boxes"]


def stage_boxes(stage: StagePlan) -> dict[tuple[str, str], Box]:
    """Return the boxes of inputs, outputs, labels, losses and metrics by (what, name)."""
    boxes: dict[tuple[str, str], Box] = {}
    linked = {link[:2] for link in stage.links}
    parts = [row for row in stage.rows if row[0] == "part"]
    for what, name, description, target in _in_order_of_inputs(stage):
        if what in ("input", "output", "label"):
            unused = what != "input" and (what, name) not in linked
            lines = [*wrap(description, what), *(["unused"] if unused else [])]
            boxes[what, name] = Box(what, name, lines, what, unused)
        elif what in ("loss", "metric"):
            more = [f"{part}: {goal}" for _, part, _, goal in parts if part.startswith(f"{name}.")]
            figures = [description] if what == "metric" and description != name else []
            lines = [line for text in (target, *figures, *more) for line in wrap(text, "term")]
            boxes[what, name] = Box(what, name, lines, "term")
    for what, name, *_ in stage.links:
        if what == "input":  # a loss takes it like a label, so it stands among the labels, too
            boxes.setdefault(("label", name), Box("input", name, ["the input"], "label"))
    return boxes


def net_boxes(trainers: Sequence[TrainerPlan], frozen: Sequence[str]) -> list[Box]:
    """Return the boxes inside the net: the parameters of each trainer, and those that are frozen."""
    boxes = []
    for trainer in trainers:
        lines = [line for text in trainer.row()[2:] for line in wrap(text, "net")]
        boxes.append(Box("trainer", trainer.name, lines, "net"))
    if frozen:
        names = f"{counted(len(frozen), 'parameter')}: {', '.join(frozen)}"
        boxes.append(Box("frozen", "frozen", wrap(names, "net"), "net"))
    return boxes


def place(boxes: Sequence[Box], least: float) -> float:
    """Spread the boxes over the height of their columns, at least `least`, and return that height."""
    columns: dict[str, list[Box]] = {}
    for box in boxes:
        columns.setdefault(box.column, []).append(box)
    heights = {name: sum(box.height for box in column) for name, column in columns.items()}
    height = max([least, *(heights[name] + GAP * (len(column) + 1) for name, column in columns.items())])
    for name, column in columns.items():
        gap = (height - heights[name]) / (len(column) + 1)
        stack(column, gap, gap)
    return height


def stack(boxes: Sequence[Box], y: float, gap: float) -> None:
    """Place boxes below each other, starting at `y`, with a gap between them."""
    for box in boxes:
        box.y = y
        y += box.height + gap


def _in_order_of_inputs(stage: StagePlan) -> list[tuple[str, str, str, str]]:
    """Return the rows with losses and metrics in the order of what they take, so that few arrows cross."""
    positions = {row[:2]: i for i, row in enumerate(stage.rows)}
    first: dict[tuple[str, str], int] = {}
    for what, name, to, target, _ in stage.links:
        if what in ("output", "label"):
            position = positions.get((what, name), 0)
            first[to, target] = min(position, first.get((to, target), position))
    return sorted(stage.rows, key=lambda row: first.get(row[:2], 0))
