"""Call losses with their arrays, and name the parts that they return."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Mapping, Sequence

from ...spec.names import LABELS, OUTPUTS, Ref
from ...spec.terms import Term, is_multi_box
from ..compat import mx
from ..user_code import user_code
from .multi_box import multi_box_loss
from .present_losses import present_loss


def call_loss(
    term: Term,
    arrays: Mapping[Ref, Any],
    function: Callable[..., Any] | None = None,
    by_value: bool = False,
) -> list[Any]:
    """Return the parts that a term's loss returns; `function` replaces the loss, if given.

    `by_value` says whether single values of its labels may be missing.
    """
    arguments = [arrays[ref] for ref in term.args]
    call = function or term.spec.fn
    if is_multi_box(call):
        call = partial(multi_box_loss, call)
    if call is None:
        return arguments[:1]
    with user_code(lambda: term.where, *zip(map(str, term.args), arguments)):
        parts = present_loss(term, arrays, call, by_value) if term.present else call(*arguments)
    return list(parts) if isinstance(parts, (list, tuple)) else [parts]


def named_parts(term: Term, values: Sequence[Any]) -> dict[str, Any]:
    """Return a term's parts by figure; ``<loss>`` is the part that is minimised."""
    parts = {f"{term.key}.{part}": value for part, value in zip(term.parts, values) if part}
    return {term.key: values[term.minimized], **parts}


def by_reference(outputs: Mapping[str, Any], slots: Mapping[str, Any]) -> dict[Ref, Any]:
    """Return one device's outputs and slots in one mapping."""
    arrays = {Ref(OUTPUTS, name): array for name, array in outputs.items()}
    arrays.update({Ref(LABELS, name): array for name, array in slots.items()})
    return arrays


def as_variable(weights: Any) -> Any:
    """Return a copy of the weights that is a variable of the recorded graph.

    The objective can then be differentiated even if all losses are constant, because no sample had anything
    to learn; its gradient then reaches no parameter.
    """
    if mx.autograd.is_recording():
        weights = weights.copy()
        weights.attach_grad()
    return weights


def detached(term: Term, arrays: Mapping[Ref, Any]) -> dict[Ref, Any]:
    """Return the arrays that a term reads, detached from the graph that computed them."""
    return {ref: None if arrays[ref] is None else arrays[ref].detach() for ref in term.refs}
