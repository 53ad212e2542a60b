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


def test_a_run_equals_itself_before_and_after_its_first_batch() -> None:
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


EYE, TURN = 'losses["left eye"]', 'metrics["turn"]'
TAKES = '["outputs.move", "labels.shift"]'
MEAN, MEDIAN = '{"function": "mean"}', '{"function": "median"}'
# what changes, and how it is shown, in the checkpoint and here
DIFFERENCES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"losses": losses(weight=0.25)}, f"{EYE}.weight", "0.5", "0.25"),
    ({"losses": losses(weight=0.5 + 1e-9)}, f"{EYE}.weight", "0.5", "0.500000001"),
    ({"losses": losses(weight=np.median)}, f"{EYE}.weight", "0.5", MEDIAN),
    ({"losses": losses(fn=gluon.loss.L2Loss())}, f"{EYE}.fn", '"mean"', '"L2Loss"'),
    ({"losses": losses(outputs="turn")}, f"{EYE}.takes", TAKES, TAKES.replace("move", "turn")),
    ({"losses": losses(returns=["a", "b"])}, f"{EYE}.parts", "[]", '["a", "b"]'),
    ({"losses": losses(returns=["a", "b"])}, f"{EYE}.minimize", "null", '"a"'),
    ({"losses": losses(normalize_by="count")}, f"{EYE}.normalize_by", "null", '"count"'),
    ({"metrics": metrics(mode="max")}, f"{TURN}.mode", "null", '"max"'),
    ({"metrics": metrics(metric=mx.metric.MSE())}, f"{TURN}.metric", '"MAE"', '"MSE"'),
    ({"metrics": metrics(stage="train")}, f"{TURN}.stages", '["train", "evaluate"]', '["train"]'),
    ({"metrics": metrics(transform=mean)}, f"{TURN}.transform", "null", MEAN),
    ({"metrics": metrics(names=["x"])}, f"{TURN}.names", "[]", '["x"]'),
    ({"labels": labels(6)}, 'labels["shift"].classes', "5", "6"),
    ({"inputs": ["image", "mask"], "unused": ["mask"]}, "inputs", '["image"]', '["image", "mask"]'),
]  # fmt: skip


def compare_specs(**changes: Any) -> list[str]:
    rest = {"parameters": {}, "trainers": {}, "devices": 1, "precision": "float32"}
    trees = [{"spec": spec_tree(spec), **rest} for spec in (declare(), declare(**changes))]
    return differences(*json.loads(json.dumps(trees)))


@pytest.mark.parametrize(("changes", "field", "saved", "here"), DIFFERENCES)
def test_every_declared_field_is_compared(changes: Any, field: str, saved: str, here: str) -> None:
    assert f"{field}: {saved} in the checkpoint, {here} here" in compare_specs(**changes)


def test_specs_that_only_one_run_has() -> None:
    evaluated = compare_specs(evaluate=declare())
    assert 'evaluate.inputs: ["image"] here, not in the checkpoint' in evaluated
    renamed = {name.replace("ear", "ears"): loss for name, loss in losses().items()}
    old, new = compare_specs(losses=renamed)
    assert old.startswith('losses["left ear"]: {"fn": "mean", ')
    assert old.endswith('in the checkpoint, not here (did you mean "left ears"?)')
    assert new.endswith('here, not in the checkpoint (did you mean "left ear"?)')
    reordered = dict(reversed(losses(weight=np.float32(0.5)).items()))
    assert compare_specs(losses=reordered, name="other", metrics=metrics()) == []


VALUES = [
    (float("nan"), "nan"), (np.float32(0.5), 0.5), (np.int64(3), 3), ((1, "a", [None]), [1, "a", [None]]),
    ({"beta": 0.9}, {"beta": 0.9}), (mx.metric.MAE(), {"function": "MAE"}), (..., "..."),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[str(expected) for _, expected in VALUES])
def test_values_as_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected and type(plain(value)) is type(expected)


# ---- parameters, trainers, devices -------------------------------------------------------------------------


def test_parameters_are_compared() -> None:
    net = normed_heads()
    net.digit = nn.Dense(4)
    net.body.add(nn.Dense(5))
    estimators = make_estimator(), make_estimator(net=net)
    for estimator in estimators:
        train(estimator, make_batches([8]))
    saved, now = map(stored, estimators)
    lines, back = differences(saved, now), differences(now, saved)
    assert 'parameters["digit.weight"].shape: [3, 8] in the checkpoint, [4, 5] here' in lines
    added = 'parameters["body.3.weight"]: {"shape": [5, 8], "dtype": "float32"} '
    assert f"{added}here, not in the checkpoint" in lines and f"{added}in the checkpoint, not here" in back
    lines = differences(saved, {**saved, "parameters": {}})  # six of many are shown
    assert lines[-1] == f"parameters: {len(saved['parameters']) - 6} more differences"


def test_dtypes_numbers_of_axes_devices_and_precision_are_compared() -> None:
    saved, now = stored(make_estimator(2)), {**stored(make_estimator(1)), "precision": "bfloat16"}
    now["parameters"]["size.bias"] = {"shape": [1, 0], "dtype": "bfloat16"}
    assert sorted(differences(saved, now)) == [
        "devices: 2 in the checkpoint, 1 here",
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
    lines = differences(saved, stored(make_estimator(trainers=other)))
    assert 'trainers["body"].options["learning_rate"]: 0.01 in the checkpoint, 0.02 here' in lines
    assert 'trainers["body"].clip_norm: null in the checkpoint, 1.0 here' in lines
    assert 'trainers["body"].every: 2 here, not in the checkpoint' in lines
    assert 'trainers["body"].holds["size.weight"]: here, not in the checkpoint' in lines
    old, new = (line for line in lines if line.startswith('trainers["head'))
    assert old.endswith('in the checkpoint, not here (did you mean "head"?)')
    assert new.endswith('here, not in the checkpoint (did you mean "heads"?)')
    same = {**two_trainers(), "body": TrainerSpec("body.*", "sgd", {"learning_rate": 0.01})}
    assert differences(saved, stored(make_estimator(trainers=same))) == [
        'trainers["body"].optimizer: "Adam" in the checkpoint, "SGD" here',
        'trainers["body"].schedule: "FactorScheduler" in the checkpoint, null here',
    ]


def test_options_are_compared_only_if_both_are_known() -> None:
    """Those of an optimizer that the user built have changed since."""
    saved = stored(make_estimator(trainers=TrainerSpec(".*", "adam", {"learning_rate": 0.3})))
    for optimizer, same in ((mx.optimizer.Adam(learning_rate=0.1), True), ("adam", False)):
        now = stored(make_estimator(trainers=TrainerSpec(".*", optimizer)))
        assert (differences(saved, now) == []) == same


def test_a_rate_set_during_the_run_and_the_order_of_parameters_do_not_matter() -> None:
    estimator = make_estimator()
    before = stored(estimator)
    estimator.trainers["body"].learning_rate = 0.5
    now = stored(estimator)
    now["trainers"]["heads"]["holds"].reverse()
    assert differences(before, now) == []


def test_a_symbol_blocks_parameters_have_their_shapes(tmp_path: Path) -> None:
    layer = hybridized(nn.Dense(3, in_units=4))
    layer.initialize()
    layer(mx.nd.ones((2, 4)))
    layer.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    spec = gluon.loss.SoftmaxCrossEntropyLoss()
    estimator = MultiEstimator(gluon.SymbolBlock.imports(*files), spec, TrainerSpec(".*"))
    shapes = [parameter["shape"] for parameter in stored(estimator)["parameters"].values()]
    assert sorted(shapes) == [[3], [3, 4]]
