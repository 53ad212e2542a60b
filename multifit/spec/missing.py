"""Labels that may be missing: their declarations, and the losses and metrics that must skip them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, Iterator, Mapping, Sequence

from ..arguments import is_finite_number
from ..errors import quoted, shown, suggest
from .names import LABELS, Ref
from .specs import LabelSpec
from .terms import MetricTerm, Term

NAN = "nan"


def presence(label: str) -> str:
    """Return the name of the slot that says where a label is present: 1 there, else 0."""
    return f"present.{label}"


def coverage(label: str) -> str:
    """Return the name of the figure that says how much of a label is present."""
    return f"coverage_{label}"


def with_presence(
    terms: Sequence[Term], metrics: Sequence[MetricTerm], labels: Mapping[str, LabelSpec]
) -> tuple[tuple[Term, ...], tuple[MetricTerm, ...]]:
    """Return the losses and metrics, each with the presence slots of its labels that may be missing."""
    terms = [replace(term, present=_present(term.args, labels, term.spec.fn)) for term in terms]
    of_losses = {figure: term.present for term in terms for figure in term.figures}
    known = []
    for metric in metrics:
        present = [
            *_present(metric.args, labels),
            *(ref for name in metric.losses for ref in of_losses[name]),
        ]
        known.append(replace(metric, present=tuple(dict.fromkeys(present))))
    return tuple(terms), tuple(known)


def is_missable(label: LabelSpec | None) -> bool:
    """Whether a label may be missing."""
    return label is not None and label.missing is not None


def _present(args: Sequence[Ref], labels: Mapping[str, LabelSpec], fn: object = None) -> tuple[Ref, ...]:
    """Return the presence slots of labels; one that is taken together with its mask needs none.

    For a loss `fn` of Gluon's, the mask is a weight, which does not say how many values there are.
    """
    names = dict.fromkeys(ref.name for ref in args if ref.space == LABELS)
    missing = {name: labels[name].missing for name in names if is_missable(labels.get(name))}
    masks = [] if type(fn).__module__ == "mxnet.gluon.loss" else list(names)
    return tuple(
        Ref(LABELS, presence(name))
        for name, mask in missing.items()
        if not (isinstance(mask, str) and mask in masks)
    )


def label_of(present: Ref) -> Ref:
    """Return the label of a presence slot."""
    return Ref(LABELS, present.name.partition(".")[2])


def missing_messages(label: LabelSpec, slots: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a label's `missing`; `slots` are all slots of a batch."""
    missing: Any = label.missing
    where = f'labels["{label.name}"]: missing'
    if isinstance(missing, str):
        masks = [name for name in slots if name != label.name]
        if missing != NAN and missing not in masks:
            near = suggest(missing, [NAN, *masks])
            yield f'{where} is {shown(missing)}{near}; valid are "nan", a number, or a slot ({quoted(masks)})'
    elif missing is not None and not is_finite_number(missing):
        yield f'{where} is {shown(missing)}; valid are "nan", a number, or the name of a slot'
