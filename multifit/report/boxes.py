"""The boxes of the plan's diagram, and where they stand."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import counted
from ..plan import StagePlan, TrainerPlan

LINE, PADDING, GAP = 14.0, 9.0, 10.0  # of a box's text, inside a box, between boxes
COLUMNS = {  # where each column of boxes starts, and its width
    "input": (0.0, 150.0),
    "net": (190.0, 240.0),
    "output": (470.0, 150.0),
    "term": (690.0, 270.0),
    "label": (1030.0, 150.0),
}
MARGIN = 8.0  # around the boxes inside the net's box
LETTER, TITLE_LETTER = 6.1, 7.4  # mean widths


@dataclass
class Box:
    """A box with a title and lines of small text."""

    kind: str  # such as "output" or "trainer"; sets the colour
    name: str
    lines: list[str]
    column: str  # one of COLUMNS
    unused: bool = False  # nothing takes it
    y: float = 0.0  # the upper edge

    @property
    def height(self) -> float:
        """The height, which depends on the number of lines."""
        return 2 * PADDING + LINE * (len(self.lines) + 1)

    @property
    def margin(self) -> float:
        """The distance from the edges of the column."""
        return MARGIN if self.column == "net" else 0.0

    @property
    def x(self) -> float:
        """The left edge."""
        return COLUMNS[self.column][0] + self.margin

    @property
    def width(self) -> float:
        """The width, which depends on the column."""
        return COLUMNS[self.column][1] - 2 * self.margin

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width

    @property
    def middle(self) -> float:
        """The height at which arrows meet the box."""
        return self.y + self.height / 2

    @property
    def title(self) -> str:
        """The name, shortened to the width."""
        letters = int((self.width - 2 * PADDING) / TITLE_LETTER)
        return self.name if len(self.name) <= letters else f"{self.name[: letters - 1]}…"

    @property
    def texts(self) -> list[tuple[float, float, str, str]]:
        """The title and the lines: x, y, class and text of each."""
        x, y = self.x + PADDING, self.y + PADDING + 10
        lines = [(x, y + number * LINE, "line", line) for number, line in enumerate(self.lines, 1)]
        return [(x, y, "name", self.title), *lines]


def stage_boxes(stage: StagePlan) -> dict[tuple[str, str], Box]:
    """Return the boxes of inputs, outputs, labels, losses and metrics by (what, name)."""
    boxes: dict[tuple[str, str], Box] = {}
    linked = {link[:2] for link in stage.links}
    parts = [row for row in stage.rows if row[0] == "part"]
    for what, name, description, target in _in_order_of_inputs(stage):
        if what in ("input", "output", "label"):
            unused = what != "input" and (what, name) not in linked
            lines = [*_wrap(description, what), *(["unused"] if unused else [])]
            boxes[what, name] = Box(what, name, lines, what, unused)
        elif what in ("loss", "metric"):
            more = [f"{part}: {goal}" for _, part, _, goal in parts if part.startswith(f"{name}.")]
            figures = [description] if what == "metric" and description != name else []
            lines = [line for text in (target, *figures, *more) for line in _wrap(text, "term")]
            boxes[what, name] = Box(what, name, lines, "term")
    for what, name, *_ in stage.links:
        if what == "input":  # a loss takes it like a label, so it stands among the labels, too
            boxes.setdefault(("label", name), Box("input", name, ["the input"], "label"))
    return boxes


def net_boxes(trainers: Sequence[TrainerPlan], frozen: Sequence[str]) -> list[Box]:
    """Return the boxes inside the net: the parameters of each trainer, and those that are frozen."""
    boxes = []
    for trainer in trainers:
        lines = [line for text in trainer.row()[2:] for line in _wrap(text, "net")]
        boxes.append(Box("trainer", trainer.name, lines, "net"))
    if frozen:
        names = f"{counted(len(frozen), 'parameter')}: {', '.join(frozen)}"
        boxes.append(Box("frozen", "frozen", _wrap(names, "net"), "net"))
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


def _wrap(text: str, column: str) -> list[str]:
    """Return text in lines that fit a box of a column, at most four."""
    letters = int((COLUMNS[column][1] - 2 * PADDING) / LETTER)
    return textwrap.wrap(text, letters, max_lines=4, placeholder=" …")
