"""Wherever a declaration refers to an output or a slot, `x`, `outputs.x` and `labels.x` mean the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from tests.common.nets import Heads

L2 = gluon.loss.L2Loss()
LOSS = {"l": LossSpec(L2, "p", "y")}


def declared(**changes: Any) -> TaskSpec:
    """Return a spec with the output "p", and the slots "x", "y" and "n"; "n" has nowhere to go."""
    fields = {"outputs": ["p"], "labels": ["y", "n"], "inputs": ["x"], "losses": LOSS, "unused": ["n"]}
    return TaskSpec(**{**fields, **changes})


def loss(**fields: Any) -> Callable[[str], TaskSpec]:
    """Return the spec by the name in one field of its loss."""
    ((field, other),) = fields.items()
    return lambda name: declared(
        losses={"l": LossSpec(L2, **{"outputs": "p", "labels": "y", **other, field: name})}
    )


def metric(name: str, field: str, **others: Any) -> TaskSpec:
    return declared(metrics={"m": MetricSpec(mx.metric.MSE(), **others, **{field: name})})


def taker(spec: TaskSpec, index: int = -1) -> list[str]:
    return [str(ref) for ref in spec.takers[index].args]


# field: what it may refer to, a spec of the name, what the spec and the combined one make of it
Row = tuple[str, Callable[[str], TaskSpec], Callable[[TaskSpec], Any], Any]
ROWS: dict[str, Row] = {
    "a loss's outputs": (
        "outputs.p", lambda name: declared(losses={"l": LossSpec(L2, name, "y")}),
        taker, ["outputs.{}p", "labels.{}y"],
    ),
    "a loss's labels": (
        "labels.y", lambda name: declared(losses={"l": LossSpec(L2, "p", name)}),
        taker, ["outputs.{}p", "labels.{}y"],
    ),
    "a loss's input as a label": (
        "labels.x", lambda name: declared(losses={"l": LossSpec(L2, "p", name)}, unused=["n", "y"]),
        taker, ["outputs.{}p", "labels.{}x"],
    ),
    "a loss's arguments": (
        "labels.y", lambda name: declared(losses={"l": LossSpec(L2, arguments=[name, "p"])}),
        taker, ["labels.{}y", "outputs.{}p"],
    ),
    "another order of a loss's arguments": (
        "outputs.p", lambda name: declared(losses={"l": LossSpec(L2, "p", "y", arguments=["y", name])}),
        taker, ["labels.{}y", "outputs.{}p"],
    ),
    "a normalizer": (
        "labels.n", lambda name: declared(losses={"l": LossSpec(L2, "p", "y", normalize_by=name)}, unused=[]),
        lambda spec: spec.terms[0].spec.normalize_by, "{}n",
    ),
    "a metric's outputs": (
        "outputs.p", lambda name: metric(name, "outputs", labels="y"), taker, ["outputs.{}p", "labels.{}y"],
    ),
    "a metric's labels": (
        "labels.y", lambda name: metric(name, "labels", outputs="p"), taker, ["outputs.{}p", "labels.{}y"],
    ),
    "a metric's arguments": ("outputs.p", lambda name: metric(name, "arguments"), taker, ["outputs.{}p"]),
    "a metric's losses": (
        "losses.l", lambda name: metric(name, "losses"), lambda spec: spec.metric_terms[0].losses, ("{}l",),
    ),
    "an unused slot": (
        "labels.n", lambda name: declared(unused=[name]), lambda spec: spec.slot_names, ("{}x", "{}y", "{}n"),
    ),
    "an unused output": (
        "outputs.q", lambda name: declared(outputs=["p", "q"], unused=[name, "n"]),
        lambda spec: [name.rpartition(".")[2] for name in spec.unused], ["{}q", "{}n"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("qualified", [False, True], ids=["bare", "qualified"])
@pytest.mark.parametrize(("name", "build", "read", "expected"), ROWS.values(), ids=ROWS)
def test_bare_and_qualified_names_are_the_same_reference(name, build, read, expected, qualified):
    spec = build(name if qualified else name.partition(".")[2])
    assert read(spec) == _filled(expected, "")
    assert read(TaskSpec.combine(part=spec)) == _filled(expected, "part/")


@pytest.mark.parametrize(("name", "build"), [row[:2] for row in ROWS.values()], ids=ROWS)
def test_a_name_of_another_space_is_unknown(name: str, build: Any) -> None:
    space, _, short = name.partition(".")
    for other in {"outputs", "labels", "losses"} - {space}:
        with pytest.raises(SpecError, match=f'there is no .* "{other}.{short}"'):
            build(f"{other}.{short}")


def test_slots_of_a_batch_and_shared_slots_may_be_qualified() -> None:
    spec = declared(batch=["labels.n", "x", "index", "labels.y"], unused=["n", "labels.index"])
    assert spec.batch == ("n", "x", "index", "y")
    both = TaskSpec.combine(a=spec, b=spec, shared=["labels.x", "y"])
    assert both.slot_names == ("x", "y", "a/n", "b/n")
    assert both.unused == ("labels.a/n", "labels.a/index", "labels.b/n", "labels.b/index")


@pytest.mark.parametrize("by", ["n", "labels.n"])
def test_a_qualified_normalizer_divides(by: str) -> None:
    spec = declared(losses={"l": LossSpec(L2, "p", "y", normalize_by=by)}, unused=[])
    net, ones = Heads(p=1, q=1), np.ones((8, 4), "float32")
    net.initialize()
    both = TaskSpec.combine(a=spec, b=spec, shared=["labels.x", "labels.y", "labels.n"])
    figures = MultiEstimator(net, both).evaluate([(ones, ones[:, :1], ones[:, 0] * 3)])
    for key, output in zip("ab", net(mx.nd.array(ones))):
        assert np.isclose(figures[f"{key}/l"], ((output.asnumpy() - 1) ** 2 / 2).sum() / 24)


def _filled(expected: Any, part: str) -> Any:
    if isinstance(expected, str):
        return expected.format(part)
    return type(expected)(_filled(item, part) for item in expected)
