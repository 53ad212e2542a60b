"""The plan as a drawing: inputs, net, outputs, losses and metrics, labels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..plan import StagePlan, TrainerPlan
from .markup import Markup, tag

__all__ = ["diagram"]

WIDTH = 1180.0
LINE, PAD, GAP = 14.0, 9.0, 10.0  # of a box's text; inside it; between boxes
COLUMNS = {"input": (0.0, 150.0), "net": (190.0, 240.0), "output": (470.0, 150.0)}
COLUMNS.update({"term": (690.0, 270.0), "label": (1030.0, 150.0)})
TITLES = {
    "input": "inputs",
    "net": "net",
    "output": "outputs",
    "term": "losses and metrics",
    "label": "labels",
}
LETTERS = 6.1  # the mean width of a letter of the small text


@dataclass
class Box:
    """A box with a title and lines of small text."""

    kind: str
    name: str
    lines: list[str]
    column: str
    y: float = 0.0

    @property
    def height(self) -> float:
        """How high it is."""
        return 2 * PAD + LINE * (len(self.lines) + 1)

    @property
    def x(self) -> float:
        """Where it begins."""
        return COLUMNS[self.column][0]

    @property
    def width(self) -> float:
        """How wide it is."""
        return COLUMNS[self.column][1]

    @property
    def middle(self) -> float:
        """Where arrows meet it."""
        return self.y + self.height / 2


def diagram(stage: StagePlan, trainers: Sequence[TrainerPlan] = (), frozen: Sequence[str] = ()) -> Markup:
    """Return the drawing of a stage.

    Parameters
    ----------
    stage : StagePlan
        What is fed with what.
    trainers : sequence of TrainerPlan
        Who moves which parameters of the net.
    frozen : sequence of str
        The parameters that nobody moves, on purpose.
    """
    boxes = _boxes(_sorted(stage))
    net = _net(trainers, frozen)
    needed = sum(box.height + GAP for box in net)
    height = _place(boxes, needed + GAP)
    room, y = Box("net", "net", [], "net"), (height - needed + GAP) / 2
    for box in net:
        box.y, y = y, y + box.height + GAP
    parts = [
        *_arrows(boxes, stage, height),
        tag("rect", x=room.x, y=0, width=room.width, height=height, rx=8, class_="box net"),
        *(_title(column, text) for column, text in TITLES.items()),
        *(part for box in (*boxes.values(), *net) for part in _drawn(box)),
    ]
    return tag("svg", *parts, viewBox=f"-2 -22 {WIDTH + 4:g} {height + 24:g}", role="img", class_="diagram")


def _title(column: str, text: str) -> Markup:
    x, width = COLUMNS[column]
    return tag("text", text, x=x + width / 2, y=-8, text_anchor="middle", class_="title")


def _boxes(stage: StagePlan) -> dict[tuple[str, str], Box]:
    boxes: dict[tuple[str, str], Box] = {}
    parts = [row for row in stage.rows if row[0] == "part"]
    for what, name, found, goes in stage.rows:
        if what in ("input", "output", "label"):
            lines = [*_wrapped(found, what), *(["unused"] if goes == "unused" else [])]
            boxes[what, name] = Box(what, name, lines, what)
        elif what in ("loss", "metric"):
            more = [f"{part[1]}: {part[3]}" for part in parts if part[1].startswith(f"{name}.")]
            figures = [found] if what == "metric" and found != name else []
            lines = [each for text in (goes, *figures, *more) for each in _wrapped(text, "term")]
            boxes[what, name] = Box(what, name, lines, "term")
    for what, name, *_ in stage.links:
        if what == "input":  # a loss takes it as it takes a label, so it is shown among these once more
            boxes.setdefault(("label", name), Box("input", name, ["the input"], "label"))
    return boxes


def _sorted(stage: StagePlan) -> StagePlan:
    """Return the stage with losses and metrics in the order of what they take, so that few arrows cross."""
    place = {row[:2]: i for i, row in enumerate(stage.rows)}
    takes: dict[tuple[str, str], list[int]] = {}
    for what, name, to, target, _ in stage.links:
        if what in ("output", "label"):
            takes.setdefault((to, target), []).append(place.get((what, name), 0))
    first = {term: min(places) for term, places in takes.items()}
    return replace(stage, rows=tuple(sorted(stage.rows, key=lambda row: first.get(row[:2], 0))))


def _wrapped(text: str, column: str) -> list[str]:
    letters = int((COLUMNS[column][1] - 2 * PAD) / LETTERS)
    return textwrap.wrap(text, letters, max_lines=4, placeholder=" …")


def _net(trainers: Sequence[TrainerPlan], frozen: Sequence[str]) -> list[Box]:
    boxes = []
    for trainer in trainers:
        what, held = trainer.row()[2:]
        lines = [each for text in (what, held) for each in _wrapped(text, "net")]
        boxes.append(Box("trainer", trainer.name, lines, "net"))
    if frozen:
        names = f"{len(frozen)} parameters: {', '.join(frozen)}"
        boxes.append(Box("frozen", "frozen", _wrapped(names, "net"), "net"))
    return boxes


def _place(boxes: dict[tuple[str, str], Box], least: float) -> float:
    """Give each box its height on the page, and return that of the drawing."""
    columns: dict[str, list[Box]] = {}
    for box in boxes.values():
        columns.setdefault(box.column, []).append(box)
    needs = {column: sum(box.height for box in found) for column, found in columns.items()}
    height = max([least, *(needs[column] + GAP * (len(columns[column]) + 1) for column in columns)])
    for column, found in columns.items():
        gap = (height - needs[column]) / (len(found) + 1)
        y = gap
        for box in found:
            box.y, y = y, y + box.height + gap
    return height


def _arrows(boxes: dict[tuple[str, str], Box], stage: StagePlan, height: float) -> Iterator[Markup]:
    net, width = COLUMNS["net"]
    for box in boxes.values():
        if box.column == "input":
            yield _arrow(box.x + box.width, box.middle, net, box.middle)
        if box.column == "output":
            yield _arrow(net + width, box.middle, box.x, box.middle)
    for what, name, to, target, how in stage.links:
        source, end = boxes["label" if what == "input" else what, name], boxes[to, target]
        kind = "arrow" if how == "feeds" else "arrow normalises"
        if source.column == "output":
            yield _arrow(source.x + source.width, source.middle, end.x, end.middle, kind)
        elif source.column == "label":
            yield _arrow(source.x, source.middle, end.x + end.width, end.middle, kind)
        else:  # a metric that is fed a loss stands in its column
            yield _bow(end.x, source.middle, end.middle, kind)


def _bow(x: float, y1: float, y2: float, kind: str) -> Markup:
    bend = x - 26
    head = f"M{x - 6:g},{y2 - 3.5:.1f} L{x:g},{y2:.1f} L{x - 6:g},{y2 + 3.5:.1f}"
    return tag(
        "path", d=f"M{x:g},{y1:.1f} C{bend:g},{y1:.1f} {bend:g},{y2:.1f} {x:g},{y2:.1f} {head}", class_=kind
    )


def _arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "arrow") -> Markup:
    half = (x1 + x2) / 2
    side = 6 if x2 > x1 else -6
    curve = f"M{x1:g},{y1:.1f} C{half:g},{y1:.1f} {half:g},{y2:.1f} {x2:g},{y2:.1f}"
    head = f"M{x2 - side:g},{y2 - 3.5:.1f} L{x2:g},{y2:.1f} L{x2 - side:g},{y2 + 3.5:.1f}"
    return tag("path", d=f"{curve} {head}", class_=kind)


def _drawn(box: Box) -> Iterator[Markup]:
    inner = 8.0 if box.column == "net" else 0.0
    idle = " unused" if "unused" in box.lines else ""
    yield tag(
        "rect",
        tag("title", f"{box.kind} {box.name}"),
        x=box.x + inner,
        y=box.y,
        width=box.width - 2 * inner,
        height=box.height,
        rx=5,
        class_=f"box {box.kind}{idle}",
    )
    x = box.x + inner + PAD
    letters = int((box.width - 2 * inner - 2 * PAD) / 7.4)
    title = box.name if len(box.name) <= letters else box.name[: letters - 1] + "…"
    yield tag("text", title, x=x, y=box.y + PAD + 10, class_="name")
    for number, line in enumerate(box.lines, 1):
        yield tag("text", line, x=x, y=box.y + PAD + 10 + number * LINE)
