"""What differs between two runs is named; where nothing does, nothing is."""

from __future__ import annotations

import json

import pytest

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.gluon.optim.schedules import ScaledSchedule
from multifit.gluon.snapshot.identity import differences, identity
from multifit.spec.summary import summary
from multifit.tables import UNLIMITED

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip


def stored(engine):
    return json.loads(json.dumps(identity(engine)))


def test_a_run_is_itself_before_and_after_its_first_batch(make_engine, batches, train):
    engine = make_engine()
    before = stored(engine)
    train(engine, batches[:1])
    after = stored(engine)
    assert after["parameters"]["body.0.weight"] == {"shape": [8, 6], "dtype": "float32"}
    assert before["parameters"]["body.0.weight"]["shape"] == [8, 0]
    assert differences(after, stored(make_engine())) == []
    assert differences(after, after) == []


def test_a_rate_that_was_set_by_hand_is_no_difference(make_engine):
    engine = make_engine()
    before = stored(engine)
    optimizer = engine.trainers["body"].optimizer
    optimizer.lr_scheduler = ScaledSchedule(optimizer.lr_scheduler)
    assert differences(before, stored(engine)) == []


def test_parameters_that_differ_are_named(make_engine, batches, train):
    net = type(make_engine().net)()
    net.digit = nn.Dense(4)
    net.body.add(nn.Dense(5))
    engines = make_engine(), make_engine(net=net)
    for engine in engines:
        train(engine, batches[:1])
    lines = differences(*map(stored, engines))
    assert 'parameter "digit.weight": (3, 8) float32 in the checkpoint, (4, 5) float32 here' in lines
    assert 'parameter "digit.bias": (3) float32 in the checkpoint, (4) float32 here' in lines
    assert any(
        line.startswith('parameter "body.3.weight": (5, 8) float32 here, not in the checkpoint')
        for line in lines
    )
    there = differences(*map(stored, engines[::-1]))
    assert 'parameter "body.3.bias": (5) float32 in the checkpoint, not here' in there


def test_a_renamed_parameter_is_told_with_its_nearest(make_engine):
    saved = stored(make_engine())
    now = json.loads(json.dumps(saved).replace("digit.weight", "digits.weight"))
    lines = differences(saved, now)
    near = (
        'parameter "digit.weight": (3, 0) float32 in the checkpoint, not here (did you mean "digits.weight"?)'
    )
    assert near in lines


def test_a_dtype_and_a_number_of_axes_are_compared(make_engine):
    saved = stored(make_engine())
    now = json.loads(json.dumps(saved))
    now["parameters"]["size.bias"] = {"shape": [1, 0], "dtype": "bfloat16"}
    assert differences(saved, now) == [
        'parameter "size.bias": (1) float32 in the checkpoint, (1, 0) bfloat16 here'
    ]


def test_of_many_differences_some_are_shown(make_engine):
    saved, now = stored(make_engine()), stored(make_engine())
    now["parameters"] = {}
    lines = differences(saved, now)
    assert len(lines) == 7
    assert lines[-1] == f"parameter …: {len(saved['parameters']) - 6} more"


def test_trainers_that_differ_are_named(make_engine):
    schedule = mx.lr_scheduler.FactorScheduler(2, base_lr=0.1)
    other = {
        "body": TrainerSpec("(body|size).*", "adam", {}, schedule),
        "head": TrainerSpec("(digit|losses).*", "adam"),
    }
    lines = differences(stored(make_engine()), stored(make_engine(trainers=other)))
    assert 'trainer "heads": SGD in the checkpoint, not here (did you mean "head"?)' in lines
    assert 'trainer "head": Adam here, not in the checkpoint (did you mean "heads"?)' in lines
    assert 'trainer "body" holds "size.weight": held here, not in the checkpoint' in lines
    same = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(digit|size|losses).*", "sgd")}
    lines = differences(stored(make_engine()), stored(make_engine(trainers=same)))
    assert lines == ['trainer "body": Adam with FactorScheduler in the checkpoint, SGD here']


def test_the_order_in_which_a_trainer_holds_is_none_of_its_traits(make_engine):
    saved, now = stored(make_engine()), stored(make_engine())
    now["trainers"]["heads"]["holds"].reverse()
    assert differences(saved, now) == []


def test_a_loss_that_differs_is_named(make_engine):
    def losses(weight: float) -> dict[str, LossSpec]:
        ce, l2 = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()
        return {"digit": LossSpec(ce, weight=weight), "size": LossSpec(l2)}

    engines = [make_engine(trainers=TrainerSpec(".*"), losses=losses(weight)) for weight in (1, 2)]
    called = "SoftmaxCrossEntropyLoss(outputs.digit, labels.digit)"
    lines = differences(*map(stored, engines))
    assert lines == [f'spec, "loss digit": 1 x {called} in the checkpoint, 2 x {called} here']


OLD_TABLE = """\
TaskSpec eyes
what    name       where it goes, what it takes
------  ---------  ----------------------------------------------
input   image      net
output  left eye   losses["left eye"]
output  left ear   losses["left ear"]
loss    left eye   {} x L2Loss(outputs.left eye, labels.left eye)
loss    left ear   2 x L2Loss(outputs.left ear, labels.left ear)

when evaluating and predicting:
what    name  where it goes, what it takes
------  ----  ----------------------------
output  box   unused"""


def test_names_with_spaces_are_told_apart_in_a_spec_saved_as_a_table(make_engine):
    now = stored(make_engine())
    old, changed = ({**now, "spec": OLD_TABLE.format(weight).splitlines()} for weight in (1, 3))
    assert differences(old, old) == []
    assert differences(old, changed) == [
        'spec, "loss left eye": 1 x L2Loss(outputs.left eye, labels.left eye) in the checkpoint, '
        "3 x L2Loss(outputs.left eye, labels.left eye) here"
    ]
    without_evaluate = {**old, "spec": old["spec"][:-5]}
    assert differences(old, without_evaluate) == [
        'spec, "evaluate output box": unused in the checkpoint, not here'
    ]


def test_a_spec_saved_as_a_table_equals_the_same_spec_saved_as_data(make_engine):
    engine = make_engine()
    now = stored(engine)
    old = {**now, "spec": summary(engine.spec, UNLIMITED).splitlines()}
    assert old["spec"] != now["spec"] and differences(old, now) == []


def test_what_is_evaluated_is_compared_too(make_engine):
    metric = MetricSpec(mx.metric.MAE(), "size", "size")
    unused = ["outputs.digit"]
    evaluate = TaskSpec(["digit", "size"], ["size"], None, {"error": metric}, inputs=["image"], unused=unused)
    lines = differences(stored(make_engine()), stored(make_engine(evaluate=evaluate)))
    assert len(lines) == 5
    assert lines[-1] == (
        'spec, "evaluate metric error": MAE(outputs.size, labels.size) (train, evaluate) here, '
        "not in the checkpoint"
    )


def test_the_number_of_devices_is_compared(make_engine):
    lines = differences(stored(make_engine(2)), stored(make_engine(1)))
    assert lines == ["2 devices in the checkpoint, 1 here"]


def test_a_symbol_block_s_parameters_have_their_shapes(tmp_path, make_engine):
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.hybridize()
    net.initialize()
    net(mx.nd.ones((2, 4)))
    net.export(str(tmp_path / "net"))
    net = gluon.SymbolBlock.imports(
        str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    )
    declared = {"inputs": ["data"], "outputs": ["digit"], "labels": ["digit"], "metrics": {}}
    losses = {"digit": gluon.loss.SoftmaxCrossEntropyLoss()}
    engine = make_engine(net=net, trainers=TrainerSpec(".*"), losses=losses, **declared)
    shapes = [form["shape"] for form in stored(engine)["parameters"].values()]
    assert sorted(shapes) == [[3], [3, 4]]


@pytest.mark.parametrize("wrong", [{"body": TrainerSpec("body.*")}])
def test_trainers_that_cannot_be_built_have_no_identity(make_engine, wrong):
    with pytest.raises(ValueError, match="no trainer"):
        identity(make_engine(trainers=wrong))
