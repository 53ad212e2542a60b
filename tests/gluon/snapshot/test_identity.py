"""Identities of runs, and their differences."""

import json
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.engines.identity import differences, plain, spec_tree
from multifit.schedules import ScaledSchedule
from tests.common.nets import normed_heads

from .runs import make_batches, make_estimator, train

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


def stored(estimator: Any) -> Any:
    return json.loads(json.dumps(estimator._engine.snapshot.identity()))


def test_a_run_equals_itself_before_and_after_its_first_batch():
    estimator = make_estimator()
    before = stored(estimator)
    train(estimator, make_batches([8]))
    after = stored(estimator)
    assert after["parameters"]["body.0.weight"] == {"shape": [8, 6], "dtype": "float32"}
    assert before["parameters"]["body.0.weight"]["shape"] == [8, 0]
    assert differences(after, before) == differences(after, after) == []


# ---- the spec ----------------------------------------------------------------------------------------------


def mean(pred: Any, label: Any) -> Any:
    return (pred - label).mean()


def declare(**changes: Any) -> TaskSpec:
    declared: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ("move", ("turn", ...)),
        "labels": [LabelSpec("shift", classes=5), "turn", "count"],
        "losses": {
            "left eye": LossSpec(mean, "move", "shift", weight=0.5),
            "left ear": LossSpec(mean, "move", "shift", normalize_by="count"),
        },
        "metrics": {"turn": mx.metric.MAE(), "eyes": MetricSpec(mx.metric.Loss(), losses="left eye")},
    }
    return TaskSpec(**{**declared, **changes})


def losses(**changes: Any) -> dict[str, Any]:
    return {
        "left eye": LossSpec(**{"fn": mean, "outputs": "move", "labels": "shift", "weight": 0.5, **changes}),
        "left ear": LossSpec(mean, "move", "shift", normalize_by="count"),
    }


def metrics(**changes: Any) -> dict[str, Any]:
    eyes = MetricSpec(mx.metric.Loss(), losses="left eye")
    return {"turn": MetricSpec(**{"metric": mx.metric.MAE(), **changes}), "eyes": eyes}


EYE = 'losses["left eye"]'
TURN = 'metrics["turn"]'


# fmt: off
DIFFERENCES: dict[str, dict[str, Any]] = {
    f"{EYE}.weight: 0.5 in the checkpoint, 0.25 here": {"losses": losses(weight=0.25)},
    f"{EYE}.weight: 0.5 in the checkpoint, 0.500000001 here": {"losses": losses(weight=0.5 + 1e-9)},
    f'{EYE}.weight: 0.5 in the checkpoint, {{"function": "median"}}': {"losses": losses(weight=np.median)},
    f'{EYE}.fn: "mean" in the checkpoint, "L2Loss" here': {"losses": losses(fn=gluon.loss.L2Loss())},
    f'{EYE}.takes: ["outputs.move", "labels.shift"] in the checkpoint, ["outputs.turn"':
        {"losses": losses(outputs="turn")},
    f'{EYE}.parts: [] in the checkpoint, ["a", "b"] here': {"losses": losses(returns=["a", "b"])},
    f'{EYE}.minimize: null in the checkpoint, "a" here': {"losses": losses(returns=["a", "b"])},
    f'{EYE}.normalize_by: null in the checkpoint, "count" here': {"losses": losses(normalize_by="count")},
    f'{TURN}.mode: null in the checkpoint, "max" here': {"metrics": metrics(mode="max")},
    f'{TURN}.metric: "MAE" in the checkpoint, "MSE" here': {"metrics": metrics(metric=mx.metric.MSE())},
    f'{TURN}.stages: ["train", "evaluate"] in the checkpoint, ["train"]': {"metrics": metrics(stage="train")},
    f'{TURN}.transform: null in the checkpoint, {{"function": "mean"}}': {"metrics": metrics(transform=mean)},
    f'{TURN}.names: [] in the checkpoint, ["x"] here': {"metrics": metrics(names=["x"])},
    'labels["shift"].classes: 5 in the checkpoint, 6 here':
        {"labels": [LabelSpec("shift", classes=6), "turn", "count"]},
    'inputs: ["image"] in the checkpoint, ["image", "mask"]':
        {"inputs": ["image", "mask"], "unused": ["mask"]},
    'evaluate.inputs: ["image"] here, not in the checkpoint': {"evaluate": declare()},
}
# fmt: on


@pytest.mark.parametrize("line", DIFFERENCES)
def test_every_declared_field_is_compared(line: str) -> None:
    lines = compare_specs(declare(), declare(**DIFFERENCES[line]))
    assert any(each.startswith(line) for each in lines), lines


def compare_specs(saved: TaskSpec, now: TaskSpec) -> list[str]:
    rest = {"parameters": {}, "trainers": {}, "devices": 1, "precision": "float32"}
    trees = [json.loads(json.dumps({"spec": spec_tree(spec), **rest})) for spec in (saved, now)]
    return differences(*trees)


def test_a_renamed_loss_is_reported_with_the_nearest_name():
    renamed = {name.replace("ear", "ears"): loss for name, loss in losses().items()}
    old, new = compare_specs(declare(), declare(losses=renamed))
    assert old.startswith('losses["left ear"]: {"fn": "mean", ')
    assert old.endswith('in the checkpoint, not here (did you mean "left ears"?)')
    assert new.endswith('here, not in the checkpoint (did you mean "left ear"?)')


def test_equivalent_declarations_do_not_differ():
    reordered = dict(reversed(losses(weight=np.float32(0.5)).items()))
    assert compare_specs(declare(), declare(losses=reordered, name="other", metrics=metrics())) == []


VALUES = [
    (float("nan"), "nan"), (np.float32(0.5), 0.5), (np.int64(3), 3), ((1, "a", [None]), [1, "a", [None]]),
    ({"beta": 0.9}, {"beta": 0.9}), (mx.metric.MAE(), {"function": "MAE"}), (..., "..."),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[str(expected) for _, expected in VALUES])
def test_values_as_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected and type(plain(value)) is type(expected)


# ---- parameters, trainers, devices -------------------------------------------------------------------------


def test_parameters_are_compared():
    net = normed_heads()
    net.digit = nn.Dense(4)
    net.body.add(nn.Dense(5))
    estimators = make_estimator(), make_estimator(net=net)
    for estimator in estimators:
        train(estimator, make_batches([8]))
    saved, now = map(stored, estimators)
    lines = differences(saved, now)
    assert 'parameters["digit.weight"].shape: [3, 8] in the checkpoint, [4, 5] here' in lines
    added = 'parameters["body.3.weight"]: {"shape": [5, 8], "dtype": "float32"} '
    for end, each in (
        ("here, not in the checkpoint", lines),
        ("in the checkpoint, not here", differences(now, saved)),
    ):
        assert any(line.startswith(f"{added}{end}") for line in each)
    lines = differences(saved, {**saved, "parameters": {}})  # six of many are shown
    assert lines[-1] == f"parameters: {len(saved['parameters']) - 6} more differences"


def test_dtypes_numbers_of_axes_devices_and_precision_are_compared():
    saved, now = stored(make_estimator(2)), {**stored(make_estimator(1)), "precision": "bfloat16"}
    now["parameters"]["size.bias"] = {"shape": [1, 0], "dtype": "bfloat16"}
    assert sorted(differences(saved, now)) == [
        "devices: 2 in the checkpoint, 1 here",
        'parameters["size.bias"].dtype: "float32" in the checkpoint, "bfloat16" here',
        'parameters["size.bias"].shape: [1] in the checkpoint, [1, 0] here',
        'precision: "float32" in the checkpoint, "bfloat16" here',
    ]


def test_trainers_are_compared():
    schedule = mx.lr_scheduler.FactorScheduler(2, base_lr=0.1)
    rate = {"learning_rate": 0.02}
    other = {
        "body": TrainerSpec("(body|size).*", "adam", rate, schedule, clip_norm=1.0, every=2),
        "head": TrainerSpec("(digit|losses).*", "adam"),
    }
    lines = differences(stored(make_estimator()), stored(make_estimator(trainers=other)))
    assert 'trainers["body"].options["learning_rate"]: 0.01 in the checkpoint, 0.02 here' in lines
    assert 'trainers["body"].clip_norm: null in the checkpoint, 1.0 here' in lines
    assert 'trainers["body"].every: 2 here, not in the checkpoint' in lines
    assert 'trainers["body"].holds["size.weight"]: here, not in the checkpoint' in lines
    old, new = (line for line in lines if line.startswith('trainers["head'))
    assert old.endswith('in the checkpoint, not here (did you mean "head"?)')
    assert new.endswith('here, not in the checkpoint (did you mean "heads"?)')
    same = {
        "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.01}),
        "heads": TrainerSpec("(digit|size|losses).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    }
    assert differences(stored(make_estimator()), stored(make_estimator(trainers=same))) == [
        'trainers["body"].optimizer: "Adam" in the checkpoint, "SGD" here',
        'trainers["body"].schedule: "FactorScheduler" in the checkpoint, null here',
    ]


def test_options_are_compared_only_if_both_are_known():
    """Those of an optimizer that the user built have changed since."""
    options = {"learning_rate": 0.3}
    saved = stored(make_estimator(trainers=TrainerSpec("(body|digit|size|losses).*", "adam", options)))
    for optimizer, same in ((mx.optimizer.Adam(learning_rate=0.1), True), ("adam", False)):
        now = stored(make_estimator(trainers=TrainerSpec("(body|digit|size|losses).*", optimizer)))
        assert (differences(saved, now) == []) == same


def test_a_rate_set_during_the_run_and_the_order_of_parameters_do_not_matter():
    estimator = make_estimator()
    before = stored(estimator)
    optimizer = estimator.trainers["body"].optimizer
    optimizer.lr_scheduler = ScaledSchedule(optimizer.lr_scheduler)
    now = stored(estimator)
    now["trainers"]["heads"]["holds"].reverse()
    assert differences(before, now) == []


def test_a_symbol_blocks_parameters_have_their_shapes(tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.hybridize()
    net.initialize()
    net(mx.nd.ones((2, 4)))
    path = str(tmp_path / "net")
    net.export(path)
    net = gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
    declared = {"inputs": ["data"], "outputs": ["digit"], "labels": ["digit"], "metrics": {}}
    losses = {"digit": gluon.loss.SoftmaxCrossEntropyLoss()}
    estimator = make_estimator(net=net, trainers=TrainerSpec(".*"), losses=losses, **declared)
    shapes = [parameter["shape"] for parameter in stored(estimator)["parameters"].values()]
    assert sorted(shapes) == [[3], [3, 4]]
