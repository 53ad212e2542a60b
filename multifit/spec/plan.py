"""The plan: what goes where, as a table."""

import reprlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, NamedTuple

from ..utils.stages import STAGES
from ..utils.tables import html_table, table, terminal_width
from ..utils.text import counted
from .terms import LABELS, OUTPUTS, Declarations, MatchedAnchors, MetricTerm, Ref, Taker, Term, Tree

ARRAYS = ("input", "output", "label")
LAYER_HEADERS = "layer", "type", "output", "parameters"
FEEDS, NORMALIZES, WEIGHS = "feeds", "normalises", "weighs"  # as plan.json spells them
VALUE_WIDTH = 16  # of a metric's figures, which may be many


class Row(NamedTuple):
    """One line of a stage's plan."""

    what: str  # "input", "output", "label", "loss", "part" or "metric"
    name: str
    value: str  # shape and dtype of the array; for a metric, its figures; "" if there is no batch
    goes_to: str  # where an array goes, or how a loss or metric is computed


class Link(NamedTuple):
    """One arrow, from an input, output, label or loss to a loss or metric."""

    what: str
    name: str
    to: str
    target: str
    how: str


@dataclass(frozen=True)
class StagePlan:
    """What one stage does with a batch."""

    rows: tuple[Row, ...]
    how: str = ""  # what was traced into a graph, and why something was not
    links: tuple[Link, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        """Return two tables that fit `width`, one for the arrays and one for the losses and metrics."""
        arrays = [row for row in self.rows if row.what in ARRAYS]
        computed = [row._replace(value=_value(row)) for row in self.rows if row.what not in ARRAYS]
        parts = [_table(("what", "name", "array", "goes to"), arrays, width)]
        if computed:
            parts.append(_table(("what", "name", "value", "computed as"), computed, width))
        if self.how:
            parts.append(fill(self.how, width))
        return "\n\n".join(parts)


def stage_plan(
    declarations: Declarations,
    outputs: Mapping[str, str] | None = None,
    slots: Mapping[str, str] | None = None,
    parts: Mapping[str, str] | None = None,
    metrics: Iterable[tuple[str, Sequence[str], str]] | None = None,
    how: str = "",
) -> StagePlan:
    """Bind a stage's declarations to the arrays of a batch, by name; without them, the plan has no arrays.

    `outputs`, `slots` and `parts` (what the losses returned) have shapes and dtypes as texts. `metrics` has,
    for each metric of the stage, its key, the names of its figures, and how it is computed; None takes all
    metrics. `how` says what was traced.
    """
    outputs, slots, parts = outputs or {}, slots or {}, parts or {}
    terms = {metric.key: metric for metric in declarations.metric_terms}
    if metrics is None:
        metrics = [(key, (), _only(metric)) for key, metric in terms.items()]
    measured = {key: (figures, done) for key, figures, done in metrics}
    arrows = tuple(_links(declarations, measured))
    rows = [Row("input", n, slots.get(n, ""), _goes(arrows, "input", n)) for n in declarations.inputs]
    rows += [
        Row("output", n, outputs.get(n, ""), _goes(arrows, "output", n)) for n in declarations.output_names
    ]
    rows += [Row("label", n, slots.get(n, ""), _goes(arrows, "label", n)) for n in declarations.labels]
    rows = [_with_missing(_with_state(row, declarations), declarations) for row in rows]
    rows += [row for term in declarations.terms for row in _loss_rows(term, parts)]
    rows += [_metric_row(terms[key], *values) for key, values in measured.items()]
    return StagePlan(tuple(rows), how, arrows)


def summary(declarations: Declarations, width: int | None = None) -> str:
    """Return the declarations as a plan without arrays."""
    title = f"TaskSpec {declarations.name}\n" if declarations.name else ""
    text = title + stage_plan(declarations).to_text(width)
    if declarations.evaluate is not None:
        text += f"\n\nwhen evaluating and predicting:\n{summary(declarations.evaluate, width)}"
    return text


def one_line(declarations: Declarations) -> str:
    """Return inputs, outputs, losses and metrics in one line."""
    parts = [f"{', '.join(declarations.inputs)} -> {_tree_text(declarations.outputs)[1:-1]}"]
    parts += [
        f"{what} {', '.join(items)}"
        for what, items in (("losses", declarations.losses), ("metrics", declarations.metrics))
        if items
    ]
    name = f"{declarations.name}: " if declarations.name else ""
    return f"TaskSpec({name}{'; '.join(parts)})"


def function_name(fn: Any) -> str:
    """Return the name of a function, or of an object's class; the name of a metric stays as it is."""
    return fn if isinstance(fn, str) else str(getattr(fn, "__name__", type(fn).__name__))


def fill(text: str, width: int | None = None) -> str:
    """Break a text into lines that fit `width`, by default the terminal's; all but the first are indented."""
    return textwrap.fill(text, terminal_width() if width is None else width, subsequent_indent="  ")


def _links(declarations: Declarations, metrics: Iterable[str]) -> Iterator[Link]:
    """Yield every link of the losses, then of the metrics with these keys."""
    for term in declarations.terms:
        yield from _arguments(declarations, "loss", term)
        for name, how in ((term.spec.normalize_by, NORMALIZES), (term.spec.sample_weight, WEIGHS)):
            if isinstance(name, str):
                kind = _kind(declarations, Ref(LABELS, name))
                yield Link(kind, name, "loss", term.key, how)
    for metric in declarations.metric_terms:
        if metric.key in metrics:
            yield from _arguments(declarations, "metric", metric)
            for figure in metric.losses:
                loss = next(term.key for term in declarations.terms if figure in term.figures)
                yield Link("loss", loss, "metric", metric.key, FEEDS)


def _arguments(declarations: Declarations, to: str, taker: Taker) -> Iterator[Link]:
    for ref in taker.args:
        yield Link(_kind(declarations, ref), ref.name, to, taker.key, FEEDS)


def _kind(declarations: Declarations, ref: Ref) -> str:
    if ref.space == OUTPUTS:
        return "output"
    return "label" if ref.name in declarations.labels else "input"  # a loss may take an input as a label


def _goes(arrows: Iterable[Link], what: str, name: str) -> str:
    """Return where an array goes; what it feeds comes first."""
    mine = [link for link in arrows if (link.what, link.name) == (what, name)]
    goes = ["net"] if what == "input" else []
    goes += [link.target for link in mine if link.how == FEEDS]
    goes += [f"normalizes {link.target}" for link in mine if link.how == NORMALIZES]
    goes += [f"weighs {link.target}" for link in mine if link.how == WEIGHS]
    return ", ".join(dict.fromkeys(goes)) or "unused"


def _with_state(row: Row, declarations: Declarations) -> Row:
    """Add to the row of a state where it comes from and where it goes."""
    if row.name not in declarations.state or row.what == "label":
        return row
    if row.what == "input":
        return row._replace(goes_to=f'{row.goes_to}; the output "{row.name}" of the previous batch')
    goes = "" if row.goes_to == "unused" else f"{row.goes_to}, "
    return row._replace(goes_to=f"{goes}the next batch")


def _with_missing(row: Row, declarations: Declarations) -> Row:
    """Add to the row of a label where it is missing."""
    label = declarations.label_specs.get(row.name) if row.what == "label" else None
    if label is None or label.missing is None:
        return row
    return row._replace(goes_to=f"{row.goes_to}; missing: {label.missing}")


def _loss_rows(term: Term, parts: Mapping[str, str]) -> Iterator[Row]:
    weight = term.spec.weight
    factor = f"{function_name(weight)}(state)" if callable(weight) else f"{weight:g}"
    bound = f", trains {', '.join(term.trainers)}" if term.trainers else ""
    classes = term.spec.class_weights
    weighted = "" if classes is None else f", class weights {reprlib.repr(classes)}"
    weighted += f", weighted by {term.spec.sample_weight}" if term.spec.sample_weight else ""
    computed = f"{factor} x {_call(term.spec.fn, term.args)} / {_divisor(term)}{weighted}{bound}"
    yield Row("loss", term.key, parts.get(term.key, ""), computed)
    for i, part in enumerate(name for name in term.parts if name):
        name = f"{term.key}.{part}"
        yield Row("part", name, parts.get(name, ""), "minimized" if i == term.minimized else "measured")


def _divisor(term: Term) -> str:
    by = term.spec.normalize_by
    if by is None:
        return "samples present" if term.present else "samples"
    if isinstance(by, MatchedAnchors):
        return "matched anchors"
    return by if isinstance(by, str) else "a function of the slots"


def _metric_row(metric: MetricTerm, figures: Sequence[str], how: str) -> Row:
    call = _call(metric.spec.metric, [*metric.args, *metric.losses])
    short = ", ".join(figure[len(metric.key) + 1 :] or metric.key for figure in figures)
    return Row("metric", metric.key, short, ", ".join(filter(None, [call, how])))


def _only(metric: MetricTerm) -> str:
    stages = [metric.spec.stage] if isinstance(metric.spec.stage, str) else metric.spec.stage
    return "" if set(stages) == set(STAGES) else f"{', '.join(stages)} only"


def _call(fn: Any, args: Iterable[object]) -> str:
    """Return the text of a call, such as ``L2Loss(outputs.a, labels.a)``; None as `fn` is "the output"."""
    name = "the output" if fn is None else function_name(fn)
    return f"{name}({', '.join(map(str, args))})"


def _tree_text(tree: Tree) -> str:
    if isinstance(tree, tuple):
        return "(" + ", ".join(_tree_text(item) for item in tree) + ")"
    return "..." if tree is Ellipsis else str(tree)


def _table(headers: Sequence[str], rows: Sequence[Row], width: int | None) -> str:
    if any(row.value for row in rows):
        return table(headers, rows, width)
    return table((*headers[:2], headers[3]), [(row.what, row.name, row.goes_to) for row in rows], width)


def _value(row: Row) -> str:
    if row.what == "metric" and row.value == row.name:
        return "a number"
    return textwrap.fill(row.value, VALUE_WIDTH)


@dataclass(frozen=True)
class LoaderPlan:
    """One of several loaders, and what an epoch takes from it."""

    name: str
    size: int  # how many batches it has
    batches: int  # how many an epoch takes; if these are more, the loader starts again
    slots: tuple[str, ...]  # of its batches
    sampling: str  # how loaders are mixed

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, how much is taken, and what its batches hold."""
        passes = f"{self.batches / self.size:.3g}"
        word = "pass" if passes == "1" else "passes"
        taken = f"{counted(self.batches, 'batch', 'batches')}, {passes} {word}"
        return "loader", self.name, taken, ", ".join(self.slots)


@dataclass(frozen=True)
class TrainerPlan:
    """One trainer, with the names of the parameters that it updates."""

    name: str
    optimizer: str
    learning_rate: float | None  # at the time of the check; None if the optimizer uses none
    parameters: tuple[str, ...]
    size: int  # how many numbers the parameters hold
    clip_norm: float | None = None
    losses: tuple[str, ...] = ()  # losses that train the parameters, if there are several of both
    every: int = 1  # number of batches per update
    accumulate: bool = False  # whether an update uses all these batches, as if they were one

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, what it updates, and how."""
        clip = f", gradients clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        by = f"; by the losses {', '.join(self.losses)}" if self.losses else ""
        summed = ", as one batch" if self.accumulate else ""
        rhythm = f", every {counted(self.every, 'batch', 'batches')}{summed}" if self.every != 1 else ""
        rate = f", learning rate {self.learning_rate:g}" if self.learning_rate is not None else ""
        options = f"{self.optimizer}{rate}{clip}{rhythm}"
        return (
            "trainer",
            self.name,
            f"{counted(len(self.parameters), 'parameter')}, {self.size:,} numbers",
            f"{options}: {_span(self.parameters)}{by}",
        )


class Layer(NamedTuple):
    """One block of the net: what it returns, and how many numbers its own parameters hold."""

    name: str
    kind: str
    output: str  # "-" if the net does not call it
    parameters: int  # without those that a block before it has, too


@dataclass(frozen=True)
class Plan:
    """A spec bound to a net's outputs, a batch's slots and the trainers. Prints as tables.

    Attributes
    ----------
    devices : tuple of str
        The contexts of the run.
    samples : int
        Size of the batch that was checked.
    train, evaluate : StagePlan or None
        What is done in training and in evaluation.
    trainers : tuple of TrainerPlan
        Which trainer updates which parameters.
    frozen : tuple of str
        Parameters that no trainer updates, on purpose.
    frozen_statistics : tuple of str
        Running statistics of frozen BatchNorm layers: these normalise by them in training too, and leave them
        as they are.
    notices : tuple of str
        Defaults that were used and other things worth knowing.
    precision : str
        The precision of the net's computation.
    loaders : tuple of LoaderPlan
        How much an epoch takes from each loader, if there are several.
    balance : str
        The method that weighs the tasks, with its options, and the tasks; "" without one.
    layers : tuple of Layer
        The blocks of the net, with `name`, `kind`, `output` and `parameters`, if they were asked for.
    """

    devices: tuple[str, ...]
    samples: int
    train: StagePlan | None = None
    evaluate: StagePlan | None = None
    trainers: tuple[TrainerPlan, ...] = ()
    frozen: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    precision: str = "float32"
    loaders: tuple[LoaderPlan, ...] = ()
    balance: str = ""
    frozen_statistics: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()

    @property
    def where(self) -> str:
        """Batch size, devices and precision."""
        lowered = "" if self.precision == "float32" else f", computed in {self.precision}"
        return f"batches of {self.samples} on {', '.join(self.devices)}{lowered}"

    @property
    def stages(self) -> dict[str, StagePlan]:
        """What is done with a batch in training and in evaluation, by title; one title if it is the same."""
        if self.train is not None and self.train == self.evaluate:
            return {"training, evaluating and predicting": self.train}
        stages = {"training": self.train, "evaluating and predicting": self.evaluate}
        return {title: stage for title, stage in stages.items() if stage is not None}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int | None = None) -> str:
        """Return the plan as tables.

        Parameters
        ----------
        width : int, optional
            The longest line, in characters. Defaults to the terminal's width.
        """
        parts = [self.where]
        if self.loaders:
            rows = [loader.row() for loader in self.loaders]
            title = f"an epoch, by {self.loaders[0].sampling}"
            parts.append(f"{title}\n{table((), rows, width)}")
        stages = [f"{title}\n{stage.to_text(width)}" for title, stage in self.stages.items()]
        trained = 0 if self.train is None else 1
        parts += stages[:trained]
        if self.balance:
            parts.append(fill(f"balanced by {self.balance}", width))
        if self.trainers:
            parts.append("parameters\n" + table((), self._parameter_rows(), width))
        if self.layers:
            parts.append("layers\n" + table(LAYER_HEADERS, self._layer_rows(), width))
        parts += stages[trained:]
        if self.notices:
            parts.append("\n".join(fill(f"note: {notice}", width) for notice in self.notices))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        stages = [(title, ("what", "name", "array", ""), stage.rows) for title, stage in self.stages.items()]
        parts = [f"<p>{escape(self.where)}</p>", *(html_table(*each) for each in stages)]
        parts.append(html_table("parameters", (), self._parameter_rows()))
        if self.layers:
            parts.append(html_table("layers", LAYER_HEADERS, self._layer_rows()))
        return "\n".join([*parts, *(f"<p>note: {escape(notice)}</p>" for notice in self.notices)])

    def _parameter_rows(self) -> list[tuple[str, str, str, str]]:
        rows = [trainer.row() for trainer in self.trainers]
        if self.frozen:
            rows.append(("frozen", "", counted(len(self.frozen), "parameter"), _span(self.frozen)))
        if self.frozen_statistics:
            count = counted(len(self.frozen_statistics), "running statistic")
            rows.append(("frozen", "", count, f"used in training too: {_span(self.frozen_statistics)}"))
        return rows

    def _layer_rows(self) -> list[tuple[str, str, str, str]]:
        rows = [(*layer[:3], f"{layer.parameters:,}") for layer in self.layers]
        return [*rows, ("in all", "", "", f"{sum(layer.parameters for layer in self.layers):,}")]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict that JSON can hold."""
        return asdict(self)


def _span(names: tuple[str, ...]) -> str:
    """Return up to three names, or the first and the last of more."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
