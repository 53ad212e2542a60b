"""State that is carried from batch to batch: a language model trains as in a loop by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet import autograd, gluon, nd

from multifit import CheckpointHandler, DataError, Every, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.distributed import ALONE, World
from tests.common.compare import assert_same_parameters, snapshot
from tests.common.grids import ONE, TWO
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

EPOCHS = 2


def fit(
    net: Any, contexts: Any = ONE, handlers: Any = SILENT, world: World = ALONE, window: int = 1,
    state: Any = STATE, data: Any = BATCHES, **options: Any,
) -> MultiEstimator:  # fmt: skip
    trainer = TrainerSpec(".*", "sgd", SGD, every=window, accumulate=window > 1)
    estimator = MultiEstimator(net, make_spec(state=state), trainer, contexts, world=world)
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


@pytest.mark.parametrize(
    ("devices", "hybrid", "window", "kind", "shapes"),
    [
        (ONE, False, 1, LanguageModel, STATE),
        (TWO, True, 1, LanguageModel, STATE),
        (ONE, True, 2, LanguageModel, STATE),
        (ONE, True, 1, Keeps, KEPT),
    ],
    ids=["plain", "two devices", "accumulated", "a parameter that moves"],
)
def test_trains_as_by_hand(devices: list, hybrid: bool, window: int, kind: Any, shapes: Any) -> None:
    hand, net = make_net(hybrid=False, kind=kind), make_net(devices, hybrid, kind=kind)
    train_by_hand(hand, shapes, window)
    fit(net, devices, window=window, state=shapes)
    assert_same_parameters(net, hand)


def test_evaluates_and_predicts_as_by_hand() -> None:
    net, loss = make_net(), gluon.loss.SoftmaxCrossEntropyLoss(batch_axis=1)
    estimator = MultiEstimator(net, make_spec())
    state, expected, losses = [nd.zeros((1, SAMPLES, UNITS))] * 2, [], []
    for words, following in BATCHES:
        logits, state = net(nd.array(words), *state)
        expected.append(logits.asnumpy())
        losses.append(loss(logits, nd.array(following)).mean().asscalar())
    for _ in range(2):  # each begins with zeros
        figures = estimator.evaluate(BATCHES, batch_axis=1)
        assert figures["next"] == pytest.approx(np.mean(losses), rel=1e-4)
        outputs = estimator.predict([words for words, _ in BATCHES], batch_axis=1)
        np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-6)  # a list: 4 x 4 words


def test_two_ranks_train_as_one() -> None:
    assert_as_alone(lambda world: snapshot(fit(make_net(), world=world).net))


def test_a_resumed_run_is_equal_bit_for_bit(tmp_path: Path) -> None:
    """Stopped amid an epoch, and where one ends; other numbers of processes cannot resume it."""

    def run(folder: Path, *handlers: Any, **options: Any) -> Any:
        saving = CheckpointHandler(folder, Every(2, "batch"), seed=7)
        return fit(make_net(), handlers=[*SILENT, saving, *handlers], **options)

    assert_resumes_bit_for_bit(run, tmp_path, 3, 6)
    for error in run_ranks(2, lambda world: fit(make_net(), world=world, resume=tmp_path / "through")):
        assert "the state that 1 process carried from batch to batch, which cannot be divided" in str(error)


def test_the_plan_and_the_summary_say_what_is_carried() -> None:
    plan = MultiEstimator(make_net(), make_spec()).check(BATCHES, batch_axis=1)
    rows = {(row.what, row.name): row.goes_to for row in plan.train.rows}
    assert rows["input", "cell"] == 'net; the output "cell" of the previous batch'
    assert rows["output", "cell"] == "the next batch"
    assert 'net; the output "cell" of the previous batch' in make_spec().summary()


class Reshaped(LanguageModel):
    def hybrid_forward(self, F: Any, words: Any, hidden: Any, cell: Any) -> Any:
        return super().hybrid_forward(F, words, hidden, F.expand_dims(cell, axis=0))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no dict": (lambda: make_spec(state=["hidden"]), "state: is ['hidden']; give a dict of shapes by name"),
    "no number of samples": (
        lambda: make_spec(state={"hidden": (1, 5)}), "state: 'hidden' has the shape (1, 5); give a"),
    "an unknown name": (lambda: make_spec(state={**STATE, "cel": (0, 5)}),
        'state: "cel" is not one of the inputs (did you mean "cell"?)'),
    "not returned": (
        lambda: make_spec(outputs=["logits", "hidden"]), 'state: "cell" is not one of the outputs; the'),
    "declared in the batch": (
        lambda: make_spec(batch=["words", "hidden", "next"]), 'batch: "hidden" is carried from batch to'),
    "in a batch": (lambda: fit(make_net(), data=[dict(zip(("words", "next", "hidden"), BATCHES[0] * 2))]),
        'the batch has "hidden", which is declared in state= and comes from the previous batch; leave it'),
    "another shape": (lambda: fit(Reshaped(), state={"hidden": (1, 0, UNITS), "cell": (0, UNITS)}),
        'state: "cell" is (4, 5) float32 as an input, but the output "ce'),
    "batches of other sizes": (
        lambda: fit(make_net(), data=[*BATCHES[:3], tuple(array[:, :3] for array in BATCHES[3])]),
        "gets 3 samples of a batch, but the state of the previous batch has"),
    "several loaders": (lambda: fit(make_net(), data={"a": BATCHES, "b": BATCHES}),
        'state: "hidden", "cell" come from the previous batch; give'),
    "export": (lambda: MultiEstimator(make_net(), make_spec()).export("nowhere", BATCHES[:1]),
        'export: "hidden", "cell" come from the previous batch (state=)'),
    "combine": (lambda: TaskSpec.combine(text=make_spec()),
        "combine: text has a state= of its own, which cannot be combined"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_where_state_cannot_be_is_refused(call: Any, text: str) -> None:
    with pytest.raises((SpecError, DataError)) as caught:
        call()
    assert text in str(caught.value)
