"""A box of the plan's diagram."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

__all__ = ["COLUMNS", "GAP", "Box", "wrap"]

LINE, PADDING, GAP = 14.0, 9.0, 10.0  # of a box's text, inside a box, between boxes
COLUMNS = {  # where each column of boxes starts, and its width
    "input": (0.0, 150.0),
    "net": (190.0, 240.0),
    "output": (470.0, 150.0),
    "term": (690.0, 270.0),
    "label": (1030.0, 150.0),
}
MARGIN = 8.0  # around the boxes inside the net's
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


def wrap(text: str, column: str) -> list[str]:
    """Return text in lines that fit a box of a column, at most four."""
    letters = int((COLUMNS[column][1] - 2 * PADDING) / LETTER)
    return textwrap.wrap(text, letters, max_lines=4, placeholder=" …")
