"""Identities of runs, and their differences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.engines.identity import differences, plain, spec_tree
from tests.common.nets import hybridized, normed_heads

from .runs import make_batches, make_estimator, train, two_trainers

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


def stored(estimator: Any) -> Any:
    return json.loads(json.dumps(estimator._engine.snapshot.identity()))


def mean(pred: Any, label: Any) -> Any:
    return (pred - label).mean()


def losses(**changes: Any) -> dict[str, Any]:
    return {
        "left eye": LossSpec(**{"fn": mean, "outputs": "move", "labels": "shift", "weight": 0.5, **changes}),
        "left ear": LossSpec(mean, "move", "shift", normalize_by="count"),
    }


def metrics(**changes: Any) -> dict[str, Any]:
    eyes = MetricSpec(mx.metric.Loss(), losses="left eye")
    return {"turn": MetricSpec(**{"metric": mx.metric.MAE(), **changes}), "eyes": eyes}


def labels(classes: int = 5) -> Any:
    return [LabelSpec("shift", classes=classes), "turn", "count"]


def declare(**changes: Any) -> TaskSpec:
    declared = {"inputs": ["image"], "outputs": ("move", ("turn", ...)), "labels": labels()}
    return TaskSpec(**{**declared, "losses": losses(), "metrics": metrics(), **changes})


def compare_specs(**changes: Any) -> list[str]:
    rest = {"parameters": {}, "trainers": {}, "devices": 1, "precision": "float32"}
    trees = [{"spec": spec_tree(spec), **rest} for spec in (declare(), declare(**changes))]
    return differences(*json.loads(json.dumps(trees)))


EYE, TURN = 'losses["left eye"]', 'metrics["turn"]'
TAKES = '["outputs.move", "labels.shift"]'
MEAN, MEDIAN = '{"function": "mean"}', '{"function": "median"}'
EARS = {name.replace("ear", "ears"): loss for name, loss in losses().items()}
# what changes, and how it is shown
DIFFERENCES: list[tuple[dict[str, Any], str]] = [
    ({"losses": losses(weight=0.25)}, f"{EYE}.weight: 0.5 in the checkpoint, 0.25 here"),
    ({"losses": losses(weight=0.5 + 1e-9)}, f"{EYE}.weight: 0.5 in the checkpoint, 0.500000001 here"),
    ({"losses": losses(weight=np.median)}, f"{EYE}.weight: 0.5 in the checkpoint, {MEDIAN} here"),
    ({"losses": losses(fn=gluon.loss.L2Loss())}, f'{EYE}.fn: "mean" in the checkpoint, "L2Loss" here'),
    ({"losses": losses(outputs="turn")},
        f"{EYE}.takes: {TAKES} in the checkpoint, {TAKES.replace('move', 'turn')} here"),
    ({"losses": losses(returns=["a", "b"])}, f'{EYE}.parts: [] in the checkpoint, ["a", "b"] here'),
    ({"losses": losses(returns=["a", "b"])}, f'{EYE}.minimize: null in the checkpoint, "a" here'),
    ({"losses": losses(normalize_by="count")}, f'{EYE}.normalize_by: null in the checkpoint, "count" here'),
    ({"losses": EARS}, 'in the checkpoint, not here (did you mean "left ears"?)'),
    ({"losses": EARS}, 'here, not in the checkpoint (did you mean "left ear"?)'),
    ({"metrics": metrics(mode="max")}, f'{TURN}.mode: null in the checkpoint, "max" here'),
    ({"metrics": metrics(metric=mx.metric.MSE())}, f'{TURN}.metric: "MAE" in the checkpoint, "MSE" here'),
    ({"metrics": metrics(stage="train")},
        f'{TURN}.stages: ["train", "evaluate"] in the checkpoint, ["train"] here'),
    ({"metrics": metrics(transform=mean)}, f"{TURN}.transform: null in the checkpoint, {MEAN} here"),
    ({"metrics": metrics(names=["x"])}, f'{TURN}.names: [] in the checkpoint, ["x"] here'),
    ({"labels": labels(6)}, 'labels["shift"].classes: 5 in the checkpoint, 6 here'),
    ({"inputs": ["image", "mask"], "unused": ["mask"]},
        'inputs: ["image"] in the checkpoint, ["image", "mask"] here'),
    ({"evaluate": declare()}, 'evaluate.inputs: ["image"] here, not in the checkpoint'),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line"), DIFFERENCES)
def test_every_declared_field_is_compared(changes: Any, line: str) -> None:
    assert any(each.endswith(line) for each in compare_specs(**changes))


def test_what_does_not_count() -> None:
    """Names and the order of losses; a first batch; a rate that was set, and the order of parameters."""
    reordered = dict(reversed(losses(weight=np.float32(0.5)).items()))
    assert compare_specs(losses=reordered, name="other", metrics=metrics()) == []
    estimator = make_estimator()
    before = stored(estimator)
    train(estimator, make_batches([8]))
    estimator.trainers["body"].learning_rate = 0.5
    after = stored(estimator)
    after["trainers"]["heads"]["holds"].reverse()
    shapes = [each["parameters"]["body.0.weight"]["shape"] for each in (before, after)]
    assert shapes == [[8, 0], [8, 6]] and differences(after, before) == []


VALUES = [
    (float("nan"), "nan"), (np.float32(0.5), 0.5), (np.int64(3), 3), ((1, "a", [None]), [1, "a", [None]]),
    ({"beta": 0.9}, {"beta": 0.9}), (mx.metric.MAE(), {"function": "MAE"}), (..., "..."),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[str(expected) for _, expected in VALUES])
def test_values_as_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected and type(plain(value)) is type(expected)


def test_parameters_devices_and_precision_are_compared() -> None:
    net = normed_heads()
    net.digit = nn.Dense(4)
    net.body.add(nn.Dense(5))
    estimators = make_estimator(2), make_estimator(net=net)
    for estimator in estimators:
        train(estimator, make_batches([8]))
    saved, now = map(stored, estimators)
    lines, back = differences(saved, now), differences(now, saved)
    assert 'parameters["digit.weight"].shape: [3, 8] in the checkpoint, [4, 5] here' in lines
    added = 'parameters["body.3.weight"]: {"shape": [5, 8], "dtype": "float32"} '
    assert f"{added}here, not in the checkpoint" in lines and f"{added}in the checkpoint, not here" in back
    lines = differences(saved, {**saved, "parameters": {}, "devices": 1})  # six of many are shown
    assert f"parameters: {len(saved['parameters']) - 6} more differences" in lines
    assert "devices: 2 in the checkpoint, 1 here" in lines
    bias = {"size.bias": {"shape": [1, 0], "dtype": "bfloat16"}}
    other = {**saved, "precision": "bfloat16", "parameters": {**saved["parameters"], **bias}}
    assert sorted(differences(saved, other)) == [
        'parameters["size.bias"].dtype: "float32" in the checkpoint, "bfloat16" here',
        'parameters["size.bias"].shape: [1] in the checkpoint, [1, 0] here',
        'precision: "float32" in the checkpoint, "bfloat16" here',
    ]


def test_trainers_are_compared() -> None:
    schedule, rate = mx.lr_scheduler.FactorScheduler(2, base_lr=0.1), {"learning_rate": 0.02}
    other = {
        "body": TrainerSpec("(body|size).*", "adam", rate, schedule, clip_norm=1.0, every=2),
        "head": TrainerSpec("(digit|losses).*", "adam"),
    }
    saved = stored(make_estimator())
    text = "\n".join(differences(saved, stored(make_estimator(trainers=other))))
    assert 'trainers["body"].options["learning_rate"]: 0.01 in the checkpoint, 0.02 here' in text
    assert 'trainers["body"].clip_norm: null in the checkpoint, 1.0 here' in text
    assert 'trainers["body"].every: 2 here, not in the checkpoint' in text
    assert 'trainers["body"].holds["size.weight"]: here, not in the checkpoint' in text
    assert '(did you mean "head"?)' in text and '(did you mean "heads"?)' in text
    same = {**two_trainers(), "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.01})}
    assert differences(saved, stored(make_estimator(trainers=same))) == [
        'trainers["body"].optimizer: "Adam" in the checkpoint, "SGD" here',
        'trainers["body"].schedule: "FactorScheduler" in the checkpoint, null here',
    ]


def test_a_symbol_blocks_parameters_have_their_shapes(tmp_path: Path) -> None:
    layer = hybridized(nn.Dense(3, in_units=4))
    layer.initialize()
    layer(mx.nd.ones((2, 4)))
    layer.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    estimator = MultiEstimator(gluon.SymbolBlock.imports(*files), gluon.loss.SoftmaxCrossEntropyLoss())
    assert sorted(each["shape"] for each in stored(estimator)["parameters"].values()) == [[3], [3, 4]]
