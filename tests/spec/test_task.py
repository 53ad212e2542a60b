"""TaskSpec and its items by themselves: names, defaults, immutability, repr and summary."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, SpecError, TaskSpec, TrainerSpec


def loss(*args: Any) -> float:
    return 0.0


class Accuracy:
    """Looks like an EvalMetric; a spec knows nothing of mxnet."""

    def update(self, labels: Any, preds: Any) -> None: ...

    def reset(self) -> None: ...

    def get(self) -> Any: ...

    def __repr__(self) -> str:
        return "many\nlines"


def two_heads(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["digit", "parity"],
        "labels": ["digit", LabelSpec("parity", classes=2)],
        "losses": {"digit": loss, "parity": LossSpec(loss, weight=0.5, normalize_by="digit")},
        "metrics": {"acc": MetricSpec(Accuracy(), outputs="digit", labels="digit")},
    }
    return TaskSpec(**{**fields, **changes})


def args_of(spec: TaskSpec, key: str) -> list[str]:
    return next([str(ref) for ref in term.args] for term in spec.takers if term.key == key)


def test_names_and_their_defaults() -> None:
    spec = two_heads()
    assert args_of(spec, "digit") == ["outputs.digit", "labels.digit"]
    assert spec.losses["digit"] == LossSpec(loss)
    assert [term.figures for term in spec.terms] == [["digit"], ["parity"]]
    spec = TaskSpec(outputs="out", labels="label", losses={"out": LossSpec(loss, labels="label")})
    assert (spec.outputs, spec.labels, spec.inputs) == (("out",), ("label",), ("data",))
    assert spec.batch == ("data", "label") and args_of(spec, "out") == ["outputs.out", "labels.label"]
    assert spec.evaluation is spec
    nll = {"nll": LossSpec(loss, "logits", ["target", "length"])}
    spec = TaskSpec(outputs="logits", labels=["target", "length"], inputs=["source", "length"], losses=nll)
    assert spec.slot_names == spec.batch == ("source", "length", "target")
    spec = TaskSpec(outputs=[["a", "b"], "c", ...], losses={"l": LossSpec(loss, ["a", "b", "c"])})
    assert spec.outputs == (("a", "b"), "c", ...) and spec.output_names == ("a", "b", "c")
    assert TaskSpec(outputs=[["a", ...], "b"]).outputs == (("a", ...), "b")
    assert TaskSpec(outputs=["a", "b"], inputs=["x"]).takers == ()
    assert TaskSpec(outputs="a", inputs=[], forward=lambda net, slots: net()).inputs == ()


def test_unused_covers_output_and_label_or_one_of_them() -> None:
    assert two_heads(losses={"digit": loss}, unused=["parity"]).unused == ("parity",)
    with pytest.raises(SpecError, match='the label "parity" is not taken by any loss'):
        two_heads(losses={"digit": loss}, unused=["outputs.parity"])
    two_heads(losses={"digit": loss}, unused=["outputs.parity", "labels.parity"])


def test_a_slot_that_only_batch_names_must_be_unused() -> None:
    for name in ("index", "labels.index"):
        spec = two_heads(batch=["index", "image", "digit", "parity"], unused=[name])
        assert spec.batch[0] == "index" and "index" not in spec.slot_names


def test_it_is_immutable() -> None:
    spec = two_heads()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.outputs = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec.losses["digit"] = loss  # type: ignore[index]
    with pytest.raises(TypeError):
        spec.label_specs["digit"] = LabelSpec("digit")  # type: ignore[index]
    for part in (LossSpec(loss), MetricSpec(Accuracy()), LabelSpec("a")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            part.name = "b"  # type: ignore[misc, union-attr]


def test_arguments_may_be_changed_afterwards() -> None:
    losses = {"digit": loss, "parity": loss}
    spec = two_heads(losses=losses)
    losses.clear()
    assert list(spec.losses) == ["digit", "parity"]


TEXT = "TaskSpec(image -> digit, parity; losses digit, parity; metrics acc)"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (two_heads(), TEXT),
        (two_heads(name="heads"), TEXT.replace("(", "(heads: ", 1)),
        (TaskSpec(outputs=[["a", "b"], ...]), "TaskSpec(data -> (a, b), ...)"),
        (LossSpec(), "LossSpec()"),
        (LossSpec(loss, weight=0.5), "LossSpec(fn=loss, weight=0.5)"),
        (copy.deepcopy(LossSpec(loss, weight=1.0)), "LossSpec(fn=loss)"),
        (pickle.loads(pickle.dumps(MetricSpec("f1"))), "MetricSpec(metric='f1')"),
        (LossSpec(loss, "a", ["b"]), "LossSpec(fn=loss, outputs='a', labels=['b'])"),
        (MetricSpec(Accuracy(), mode="max"), "MetricSpec(metric=Accuracy(…), mode='max')"),
        (LabelSpec("digit", classes=10), "LabelSpec(name='digit', classes=10)"),
        (TrainerSpec(Accuracy(), "sgd"), "TrainerSpec(params=Accuracy(…), optimizer='sgd')"),
    ],
)
def test_the_repr_is_one_line(item: Any, text: str) -> None:
    assert repr(item) == text


@pytest.mark.parametrize("kind", [LossSpec, MetricSpec, LabelSpec, TrainerSpec])
def test_items_never_raise(kind: Any) -> None:
    nothing = dict.fromkeys(inspect.signature(kind).parameters)
    assert kind(**nothing) == kind(**nothing)


def test_summary_is_a_plan_without_arrays() -> None:
    losses = {
        "a": LossSpec(loss, "a", "b", weight=lambda state: 1.0, returns=["x", "y"], minimize="y"),
        "own": LossSpec(None, "own", weight=0.5, normalize_by="n"),
    }
    metrics = {"m": MetricSpec(Accuracy(), outputs="a", labels="b", stage="evaluate")}
    spec = TaskSpec(
        inputs=["x"], outputs=["a", "own"], labels=["b", "n"], losses=losses, name="heads",
        evaluate=TaskSpec(outputs="box", inputs=["x"]),
    )  # fmt: skip
    assert (
        spec.summary()
        == """\
TaskSpec heads
what    name  goes to
------  ----  --------------
input   x     net
output  a     a
output  own   own
label   b     a
label   n     normalizes own

what  name  computed as
----  ----  -----------------------------------------------------
loss  a     <lambda>(state) x loss(outputs.a, labels.b) / samples
part  a.x   measured
part  a.y   minimized
loss  own   0.5 x the output(outputs.own) / n

when evaluating and predicting:
what    name  goes to
------  ----  -------
input   x     net
output  box   unused"""
    )
    assert (
        "Accuracy(outputs.a, labels.b), evaluate only"
        in TaskSpec(outputs=["a", "own"], labels=["b", "n"], losses=losses, metrics=metrics).summary()
    )


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))])
def test_copies_declare_the_same(copied: Callable[[TaskSpec], TaskSpec]) -> None:
    """For a search that makes many estimators, and one whose processes are given their spec."""
    spec = two_heads(outputs=["digit", "parity", ...], evaluate=two_heads())
    again = copied(spec)
    assert again.summary() == spec.summary() and again.outputs == spec.outputs
    with pytest.raises(TypeError):
        again.losses["digit"] = LossSpec(loss)  # type: ignore[index]


DETAILS = {
    "a label's dtype": {"labels": [LabelSpec("digit", dtype="flot", missing="mask"), "mask"]},
    "a label's classes": {"labels": [LabelSpec("digit", classes=0)]},
    "a label's ignore": {"labels": [LabelSpec("digit", ignore="none")]},
    "a weight": {"losses": {"digit": LossSpec(len, "digt", "digit", weight=-1)}},
    "the place of ...": {"outputs": ["digit", ..., "spare"], "unused": ["spare", "lost"]},
}


@pytest.mark.parametrize("fields", DETAILS.values(), ids=DETAILS)
def test_a_detail_hides_no_other_problem(fields: dict[str, Any]) -> None:
    """And is the reason for no other: the names in it are known."""
    whole = {
        "outputs": ["digit", "lost"],
        "labels": ["digit"],
        "losses": {"digit": LossSpec(len, "digt", "digit")},
    }
    with pytest.raises(SpecError) as raised:
        TaskSpec(**{**whole, **fields})
    messages = [problem.message for problem in raised.value.problems]
    found = ['there is no output "digt"', '"lost"']
    assert len(messages) == 3 and all(any(text in message for message in messages) for text in found)


def test_a_bare_metric_takes_the_only_output_and_label() -> None:
    loss = LossSpec(max, "y", "kind")
    spec = TaskSpec(outputs=["y"], labels=["kind"], losses={"l": loss}, metrics={"acc": "accuracy"})
    assert [str(ref) for ref in spec.metric_terms[0].args] == ["outputs.y", "labels.kind"]
    assert "accuracy(outputs.y, labels.kind)" in spec.summary()
    with pytest.raises(
        SpecError, match='metrics."acc".: there is no output "acc"; outputs are "y", "z"; declare'
    ):
        TaskSpec(outputs=["y", "z"], labels=["kind"], losses={"l": loss}, metrics={"acc": "accuracy"})
