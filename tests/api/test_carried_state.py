"""State that is carried from batch to batch: a language model trains as in a loop by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, DataError, Every, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.distributed import ALONE, World
from tests.common.compare import assert_same_parameters, snapshot
from tests.common.grids import ONE, two_settings
from tests.common.hand_loop import SGD, SILENT
from tests.common.joint_training import assert_as_alone
from tests.common.language import (
    BATCHES,
    KEPT,
    SAMPLES,
    STATE,
    UNITS,
    Keeps,
    LanguageModel,
    make_net,
    make_spec,
)
from tests.common.ranks import run_ranks
from tests.common.resuming import assert_resumes_bit_for_bit

from mxnet import autograd, gluon, nd  # isort: skip

EPOCHS = 2


def fit(net: Any, contexts: Any = ONE, handlers: Any = SILENT, world: World = ALONE, **options: Any) -> Any:
    window = options.pop("window", 1)
    trainer = TrainerSpec(".*", "sgd", SGD, every=window, accumulate=window > 1)
    spec = options.pop("spec", None) or make_spec()
    estimator = MultiEstimator(net, spec, trainer, contexts, world=world)
    data = options.pop("data", BATCHES)
    estimator.fit(data, epochs=EPOCHS, event_handlers=handlers, batch_axis=1, **options)
    return estimator


def train_by_hand(net: Any, shapes: Any = STATE, window: int = 1) -> None:
    net.collect_params().setattr("grad_req", "add")
    trainer = gluon.Trainer(net.collect_params(), "sgd", SGD)
    loss = gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    for _ in range(EPOCHS):
        state = [nd.zeros((1, SAMPLES, size)) for *_, size in shapes.values()]
        for number, (words, following) in enumerate(BATCHES, 1):
            with autograd.record():
                logits, state = net(nd.array(words), *state)
                value = loss(logits, nd.array(following))
            state = [each.copy() for each in state]
            value.backward()
            if number % window == 0:
                trainer.step(SAMPLES * window)
                net.collect_params().zero_grad()


def evaluate_by_hand(net: Any) -> float:
    loss = gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    state, values = [nd.zeros((1, SAMPLES, UNITS))] * 2, []
    for words, following in BATCHES:
        logits, state = net(nd.array(words), *state)
        values.append(loss(logits, nd.array(following)).mean().asscalar())
    return float(np.mean(values))


@two_settings
def test_trains_and_evaluates_as_by_hand(devices: list, hybrid: bool) -> None:
    hand, net = make_net(hybrid=False), make_net(devices, hybrid)
    train_by_hand(hand)
    estimator = fit(net, devices)
    assert_same_parameters(net, hand)
    for _ in range(2):  # each evaluation begins with zeros
        assert estimator.evaluate(BATCHES, batch_axis=1)["next"] == pytest.approx(
            evaluate_by_hand(hand), rel=1e-4
        )


def test_it_passes_from_batch_to_batch_where_gradients_accumulate() -> None:
    hand, net = make_net(hybrid=False), make_net()
    train_by_hand(hand, window=2)
    fit(net, window=2)
    assert_same_parameters(net, hand)


def test_a_state_that_is_a_parameter_keeps_its_value_while_that_moves() -> None:
    hand, net = make_net(hybrid=False, kind=Keeps), make_net(kind=Keeps)
    train_by_hand(hand, KEPT)
    fit(net, spec=make_spec(state=KEPT))
    assert_same_parameters(net, hand, rtol=1e-5, atol=1e-6)


def test_predicts_as_by_hand() -> None:
    net = make_net()
    estimator = MultiEstimator(net, make_spec())
    state = [nd.zeros((1, SAMPLES, UNITS))] * 2
    expected = []
    for words, _ in BATCHES:
        logits, state = net(nd.array(words), *state)
        expected.append(logits.asnumpy())
    for _ in range(2):
        outputs = estimator.predict([words for words, _ in BATCHES], batch_axis=1)
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-6)  # a list: 4 x 4 words


def test_two_ranks_train_as_one() -> None:
    assert_as_alone(lambda world: snapshot(fit(make_net(), world=world).net))


def test_a_resumed_run_is_equal_bit_for_bit(tmp_path: Path) -> None:
    """Stopped amid an epoch, and where one ends."""

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=7)
        return fit(make_net(), handlers=[*SILENT, saving, *handlers], **options)

    assert_resumes_bit_for_bit(run, tmp_path, 3, 6)


def test_other_numbers_of_processes_cannot_resume(tmp_path: Path) -> None:
    fit(make_net(), handlers=[*SILENT, CheckpointHandler(tmp_path)])
    for error in run_ranks(2, lambda world: fit(make_net(), world=world, resume=tmp_path)):
        assert "the state that 1 process carried from batch to batch, which cannot be divided" in str(error)


def test_the_plan_and_the_summary_say_what_is_carried() -> None:
    plan = MultiEstimator(make_net(), make_spec()).check(BATCHES, batch_axis=1)
    rows = {(row.what, row.name): row.goes_to for row in plan.train.rows}
    assert rows["input", "cell"] == 'net; the output "cell" of the previous batch'
    assert rows["output", "cell"] == "the next batch"
    assert 'net; the output "cell" of the previous batch' in make_spec().summary()


# fmt: off
DECLARED = {
    "no dict": ({"state": ["hidden"]}, "state: is ['hidden']; give a dict of shapes by name"),
    "no number of samples": ({"state": {"hidden": (1, 5)}}, "state: 'hidden' has the shape (1, 5); give a"),
    "an unknown name": ({"state": {**STATE, "cel": (0, 5)}},
        'state: "cel" is not one of the inputs (did you mean "cell"?)'),
    "not returned": ({"outputs": ["logits", "hidden"]}, 'state: "cell" is not one of the outputs; the'),
    "in the batch": ({"batch": ["words", "hidden", "next"]}, 'batch: "hidden" is carried from batch to'),
}
# fmt: on


@pytest.mark.parametrize(("changes", "text"), DECLARED.values(), ids=DECLARED)
def test_wrong_declarations_are_refused(changes: Any, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(**changes)
    assert text in str(caught.value)


class Reshaped(LanguageModel):
    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:
        return super().hybrid_forward(F, words, hidden, F.expand_dims(cell, axis=0))


# fmt: off
REFUSED = {
    "in a batch": (
        lambda: fit(make_net(), data=[dict(zip(("words", "next", "hidden"), BATCHES[0] * 2))]),
        'the batch has "hidden", which is declared in state= and comes from the previous batch; leave it'),
    "another shape": (
        lambda: fit(Reshaped(), spec=make_spec(state={"hidden": (1, 0, UNITS), "cell": (0, UNITS)})),
        'state: "cell" is (4, 5) float32 as an input, but the output "ce'),
    "batches of other sizes": (
        lambda: fit(make_net(), data=[*BATCHES[:3], tuple(array[:, :3] for array in BATCHES[3])]),
        "gets 3 samples of a batch, but the state of the previous batch has"),
    "several loaders": (
        lambda: fit(make_net(), data={"a": BATCHES, "b": BATCHES}),
        'state: "hidden", "cell" come from the previous batch; give'),
    "export": (
        lambda: MultiEstimator(make_net(), make_spec()).export("nowhere", BATCHES[:1]),
        'export: "hidden", "cell" come from the previous batch (state=)'),
    "combine": (
        lambda: TaskSpec.combine(text=make_spec()),
        "combine: text has a state= of its own, which cannot be combined"),
}
# fmt: on


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_where_state_cannot_be_is_refused(call: Any, text: str) -> None:
    with pytest.raises((SpecError, DataError)) as caught:
        call()
    assert text in str(caught.value)
