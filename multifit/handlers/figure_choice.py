"""Choose the figures that a handler shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..errors import quoted, suggest
from ..plots import select_figures
from ..sampling import COUNTS
from ..spec import TaskSpec
from ..spec.names import Ref
from ..spec.terms import MetricTerm, Term
from ..stages import PREFIXES, TRAIN, split_figure


class FigureChoice:
    """The figures that a handler shows: names, or regular expressions that match whole names.

    None chooses the objective and one key figure per task. Raises ValueError if one of `figures` is not a
    valid regular expression.
    """

    def __init__(self, figures: str | Iterable[str] | None = None) -> None:
        self.patterns = figures if figures is None or isinstance(figures, str) else list(figures)
        select_figures([], self.patterns)

    def of(self, figures: Mapping[str, float], spec: TaskSpec) -> dict[str, float]:
        """Return those of `figures` that are shown; all have full names, such as ``val_loss``."""
        names = key_figures(figures, spec) if self.patterns is None else self.matching(figures)
        return {name: figures[name] for name in names}

    def matching(self, figures: Iterable[str]) -> list[str]:
        """Return the names that match the patterns; all names if there are no patterns."""
        return select_figures(figures, self.patterns)[0]

    def warning(self, history: Mapping[str, Sequence[float]]) -> str | None:
        """Return a warning about patterns that match no figure of a fit, or None."""
        missing = select_figures(history, self.patterns)[1]
        if not missing or not history:
            return None
        return f"no figure {quoted(missing)}{suggest(missing[0], history)}; there are {quoted(history)}"


def key_figures(figures: Iterable[str], spec: TaskSpec) -> list[str]:
    """Return, for each stage, the objective and one key figure per task, then the figures of no stage.

    The net's outputs tell one task from another: the key figure of a task is the first metric that reads one
    of its outputs, or else its first loss. If the metric has several figures, the last one is taken, which by
    convention is the mean over the classes.
    """
    staged: dict[str, list[str]] = {prefix: [] for prefix in ("", *PREFIXES.values())}
    for figure in figures:
        prefix, name = split_figure(figure)
        staged[prefix].append(name)
    keys = []
    for stage, prefix in PREFIXES.items():
        names = _stage_key_figures(staged[prefix], spec if stage == TRAIN else spec.evaluation)
        keys += [f"{prefix}_{name}" for name in names]
    return [*keys, *staged[""]]


def _stage_key_figures(names: Sequence[str], spec: TaskSpec) -> list[str]:
    of_loss = {figure: term.outputs for term in spec.terms for figure in term.figures}
    keys: dict[str, int] = {}  # the key figures, and the position of the first output that they are about
    covered: set[Ref] = set()
    known = {"loss"}
    terms: list[MetricTerm | Term] = [*spec.metric_terms, *spec.terms]
    for term in terms:
        figures = [name for name in names if name == term.key or name.startswith(f"{term.key}.")]
        known.update(figures)
        is_metric = isinstance(term, MetricTerm)
        losses = term.losses if isinstance(term, MetricTerm) else ()
        outputs = set(term.outputs).union(*(of_loss[loss] for loss in losses))
        if figures and outputs and covered.isdisjoint(outputs):
            covered |= outputs
            if is_metric or len(spec.terms) > 1:  # a single loss is the objective
                first = min(spec.output_names.index(ref.name) for ref in outputs)
                keys[figures[-1] if is_metric else figures[0]] = first
    objective = [name for name in names if name == "loss"]
    # The numbers of batches and passes of several loaders are left out: they hardly change.
    others = [n for n in names if n not in known and "." not in n and n.partition("_")[0] not in COUNTS]
    return [*objective, *sorted(keys, key=keys.__getitem__), *others]
