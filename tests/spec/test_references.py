"""Wherever a declaration refers to an output or a slot, `x`, `outputs.x` and `labels.x` mean the same."""

from collections.abc import Callable
from typing import Any

import pytest

from multifit import LossSpec, MetricSpec, SpecError, TaskSpec


def loss(*args: Any) -> float:
    return 0.0


LOSS = {"l": LossSpec(loss, "p", "y")}


def declared(**changes: Any) -> TaskSpec:
    """Return a spec with the output "p", and the slots "x", "y" and "n"; "n" has nowhere to go."""
    fields = {"outputs": ["p"], "labels": ["y", "n"], "inputs": ["x"], "losses": LOSS, "unused": ["n"]}
    return TaskSpec(**{**fields, **changes})


def with_loss(*arguments: Any, unused: Any = ("n",), **fields: Any) -> TaskSpec:
    return declared(losses={"l": LossSpec(loss, *arguments, **fields)}, unused=list(unused))


def metric(name: str, field: str, **others: Any) -> TaskSpec:
    return declared(metrics={"m": MetricSpec(loss, **others, **{field: name})})


def taker(spec: TaskSpec, index: int = -1) -> list[str]:
    return [str(ref) for ref in spec.takers[index].args]


PY = ["outputs.{}p", "labels.{}y"]
# field: what it may refer to, a spec of the name, what the spec and the combined one make of it
ROWS: dict[str, tuple[str, Callable[[str], TaskSpec], Callable[[TaskSpec], Any], Any]] = {
    "a loss's outputs": ("outputs.p", lambda name: with_loss(name, "y"), taker, PY),
    "a loss's labels": ("labels.y", lambda name: with_loss("p", name), taker, PY),
    "a loss's input as a label": (
        "labels.x", lambda name: with_loss("p", name, unused="ny"), taker, ["outputs.{}p", "labels.{}x"]
    ),
    "a loss's arguments": ("labels.y", lambda name: with_loss(arguments=[name, "p"]), taker, PY[::-1]),
    "another order of a loss's arguments": (
        "outputs.p", lambda name: with_loss("p", "y", arguments=["y", name]), taker, PY[::-1]
    ),
    "a normalizer": (
        "labels.n", lambda name: with_loss("p", "y", normalize_by=name, unused=""),
        lambda spec: spec.terms[0].spec.normalize_by, "{}n",
    ),
    "a metric's outputs": ("outputs.p", lambda name: metric(name, "outputs", labels="y"), taker, PY),
    "a metric's labels": ("labels.y", lambda name: metric(name, "labels", outputs="p"), taker, PY),
    "a metric's arguments": ("outputs.p", lambda name: metric(name, "arguments"), taker, PY[:1]),
    "a metric's losses": (
        "losses.l", lambda name: metric(name, "losses"), lambda spec: spec.metric_terms[0].losses, ("{}l",)
    ),
    "an unused slot": (
        "labels.n", lambda name: declared(unused=[name]), lambda spec: spec.slot_names, ("{}x", "{}y", "{}n")
    ),
    "an unused output": (
        "outputs.q", lambda name: declared(outputs=["p", "q"], unused=[name, "n"]),
        lambda spec: [name.rpartition(".")[2] for name in spec.unused], ["{}q", "{}n"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "build", "read", "expected"), ROWS.values(), ids=ROWS)
def test_bare_and_qualified_names_are_the_same_reference(name, build, read, expected):
    def filled(expected: Any, part: str) -> Any:
        if isinstance(expected, str):
            return expected.format(part)
        return type(expected)(filled(item, part) for item in expected)

    for spec in (build(name), build(name.partition(".")[2])):
        assert read(spec) == filled(expected, "")
        assert read(TaskSpec.combine(part=spec)) == filled(expected, "part/")


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
