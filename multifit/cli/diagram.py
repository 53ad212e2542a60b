"""The plan as a diagram: inputs, net, outputs, losses and metrics, labels; the browser places the boxes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..spec.plan import FEEDS, NORMALIZES, Link, Row, TrainerPlan
from ..utils.text import counted

COMPUTED = ("loss", "metric")


class Box(NamedTuple):
    """A box with a title and lines of small text."""

    kind: str  # such as "output" or "trainer"; sets the colour
    name: str
    lines: tuple[str, ...]
    dashed: bool = False


class Task(NamedTuple):
    """Losses and metrics that take the same; or an output or label that nothing takes."""

    sources: Sequence[Box]  # outputs, or losses that a metric reads
    terms: Sequence[Box]
    labels: Sequence[Box]


@dataclass(frozen=True)
class Diagram:
    """What a stage does with a batch, from the left to the right."""

    title: str
    inputs: Sequence[Box]
    net: Sequence[Box]  # its trainers, and what is frozen
    tasks: Sequence[Task]
    how: str


def diagrams(plan: Mapping[str, Any]) -> list[Diagram]:
    """Return a diagram for each stage of a plan from JSON, or one if training and evaluating are alike.

    Raises KeyError, TypeError or ValueError if it is not a plan.
    """
    where = f"batches of {plan['samples']} on {', '.join(plan['devices'])}"
    if plan["precision"] != "float32":
        where += f", computed in {plan['precision']}"
    net = list(_net_boxes(plan["trainers"], plan["frozen"]))
    train, evaluate = plan["train"], plan["evaluate"]
    if train == evaluate and train is not None:
        return [_diagram(f"training, evaluating and predicting: {where}", train, net)]
    stages = [("training", train, net), ("evaluating and predicting", evaluate, [])]
    return [
        _diagram(f"{title}: {where}", stage, inner) for title, stage, inner in stages if stage is not None
    ]


def _diagram(title: str, stage: Mapping[str, Any], net: Sequence[Box]) -> Diagram:
    rows, links = [Row(*row) for row in stage["rows"]], [Link(*link) for link in stage["links"]]
    boxes = {(row.what, row.name): _box(row, rows, links) for row in rows if row.what != "part"}
    inputs = [boxes["input", row.name] for row in rows if row.what == "input"]
    return Diagram(title, inputs, net, _tasks(boxes, links), stage["how"])


def _net_boxes(trainers: Iterable[Mapping[str, Any]], frozen: Sequence[str]) -> Iterator[Box]:
    for trainer in trainers:
        _, name, *lines = TrainerPlan(**trainer).row()
        yield Box("trainer", name, tuple(lines))
    if frozen:
        yield Box("frozen", "frozen", (f"{counted(len(frozen), 'parameter')}: {', '.join(frozen)}",), True)


def _box(row: Row, rows: Sequence[Row], links: Sequence[Link]) -> Box:
    if row.what in COMPUTED:
        parts = [part for part in rows if part.what == "part" and part.name.startswith(f"{row.name}.")]
        figures = [row.value] if row.what == "metric" and row.value != row.name else []
        lines = (row.goes_to, *figures, *(f"{part.name}: {part.goes_to}" for part in parts))
        return Box(row.what, row.name, lines)
    alone = row.what != "input" and not any(link[:2] == row[:2] for link in links)
    return Box(row.what, row.name, (row.value, row.goes_to) if alone else (row.value,), alone)


def _tasks(boxes: Mapping[tuple[str, str], Box], links: Sequence[Link]) -> list[Task]:
    """Return the losses and metrics by what they take, in the order of the outputs, then what none takes."""
    order = list(boxes)
    groups: dict[tuple[tuple[Box, ...], tuple[Box, ...]], list[Box]] = {}
    computed = [key for key in order if key[0] in COMPUTED]
    for key in sorted(computed, key=lambda key: _first(key, links, order)):
        taken = [(boxes[link[:2]], link) for link in links if (link.to, link.target) == key]
        sources = dict.fromkeys(_source(box) for box, link in taken if link.what in ("output", "loss"))
        labels = dict.fromkeys(_label(box, link) for box, link in taken if link.what in ("label", "input"))
        groups.setdefault((tuple(sources), tuple(labels)), []).append(boxes[key])
    tasks = [Task(sources, terms, labels) for (sources, labels), terms in groups.items()]
    alone = [box for box in boxes.values() if box.dashed]
    return tasks + [Task([box], [], []) if box.kind == "output" else Task([], [], [box]) for box in alone]


def _first(term: tuple[str, str], links: Sequence[Link], order: Sequence[tuple[str, str]]) -> int:
    return min([order.index(link[:2]) for link in links if (link.to, link.target) == term], default=0)


def _source(box: Box) -> Box:
    return box if box.kind == "output" else box._replace(lines=())  # a loss is described elsewhere


def _label(box: Box, link: Link) -> Box:
    if link.how == FEEDS:
        return box
    return box._replace(lines=(*box.lines, "normalizes" if link.how == NORMALIZES else link.how), dashed=True)
