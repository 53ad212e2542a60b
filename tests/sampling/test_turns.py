"""``fit({"digit": …, "size": …})``: as a hand-written loop that takes batches of several loaders in turn."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, TaskSpec
from multifit.engines.loaders import iterate
from multifit.sampling import Proportional, Ratios, RoundRobin
from tests.common.compare import assert_same_parameters, copy_parameters, twins
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import every_setting, pairwise
from tests.common.hand_loop import SILENT, trainer_of
from tests.common.handlers import handler
from tests.common.nets import hybridized, normed_heads, two_heads
from tests.common.specs import CE, L2, two_head_spec

from .runs import MOVING, SGD, by_hand, in_turn, parts

import mxnet as mx  # isort: skip


def own_loss(output: Any, label: Any) -> Any:
    """A loss that cannot be traced."""
    return mx.nd.square(output - label).mean(axis=1)


@every_setting
def test_turns_are_those_of_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    data = parts()
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    by_hand(hand, in_turn(data, 4) * 2)
    estimator = MultiEstimator(hybridized(net, hybrid), two_head_spec(), SGD, devices)
    estimator.fit(data, epochs=2, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(net, hand)


LOSSES = {"own": LossSpec(own_loss), "weighted": LossSpec(L2, weight=lambda s: 0.5)}


@pairwise("loss", LOSSES)
def test_any_loss_is_that_of_a_hand_written_loop(devices: Any, hybrid: bool, loss: str) -> None:
    data, size = parts(24, 24), LOSSES[loss]
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    square = lambda output, label: mx.nd.square(output - label).mean(axis=1)  # noqa: E731
    weights = {"size": 0.5} if callable(size.weight) else None
    by_hand(hand, in_turn(data, 3), {"digit": CE, "size": L2 if weights else square}, weights)
    trained = two_heads("hybridized" if hybrid else "plain")
    trained.initialize(ctx=devices)
    trained(mx.nd.array(data["digit"][0][0], ctx=devices[0]))
    copy_parameters(net, trained)
    spec = two_head_spec(losses={"digit": CE, "size": size})
    estimator = MultiEstimator(trained, spec, SGD, devices)
    estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(trained, hand)


@pytest.mark.parametrize("kind", ["plain", "hybrid", "hybridized"])
def test_what_a_batch_does_not_reach_does_not_move(kind: str) -> None:
    moved: list[tuple[str, set[str]]] = []
    before: dict[str, Any] = {}

    def read(estimator: Any) -> dict[str, bytes]:
        return {name: p.list_data()[0].asnumpy().tobytes() for name, p in estimator.parameters.items()}

    def batch_begin(estimator: Any, batch: Any) -> None:
        before.update(read(estimator) if estimator.state.step else {})

    def batch_end(estimator: Any, batch: Any, pred: Any, label: Any, loss: Any) -> None:
        after = read(estimator)
        changed = {name.split(".")[0] for name in before if after[name] != before[name]}
        moved.append((batch.name, changed))
        other = ({"digit", "size"} - {batch.name}).pop()
        assert loss[other] == label[other] == [None] and loss[batch.name][0] is not None

    watch = handler("Watch", batch_begin=batch_begin, batch_end=batch_end)
    estimator = MultiEstimator(two_heads(kind), two_head_spec(), SGD, initializer=mx.init.Xavier())
    estimator.fit(parts(), epochs=2, event_handlers=[*SILENT, watch], sampling=Ratios(digit=2, size=1))
    assert len(moved) == 14 and all(changed == {"body", name} for name, changed in moved[1:])


def test_running_statistics_are_those_of_a_hand_written_loop() -> None:
    data = parts(sizes=24)
    hand, net = twins(lambda: normed_heads(dropout=0.0), data["digit"][0][0])
    by_hand(hand, in_turn(data, 3))
    estimator = MultiEstimator(hybridized(net), two_head_spec(), SGD)
    estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(net, hand)


def test_labels_that_all_loaders_have_count_in_all_of_them() -> None:
    arrays = two_head_arrays(24)
    image, digit, size = arrays["image"], arrays["digit"], arrays["size"]
    both = [{"image": image[:8], "digit": digit[:8], "size": size[:8]}]
    digits = in_batches([image[8:], digit[8:]])
    hand, net = twins(lambda: two_heads("hybrid"), image)
    trainer = trainer_of(hand, "sgd", MOVING)
    for batch in (both[0], *({"image": i, "digit": d} for i, d in digits)):
        with mx.autograd.record():
            outputs = hand(mx.nd.array(batch["image"]))
            loss = CE(outputs[0], mx.nd.array(batch["digit"]))
            if "size" in batch:
                loss = loss + L2(outputs[1], mx.nd.array(batch["size"]))
        loss.backward()
        trainer.step(8, ignore_stale_grad=True)
    estimator = MultiEstimator(net, two_head_spec(), SGD)
    data = {"labelled": both, "digit": digits}
    history = estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=InOrder())
    assert_same_parameters(net, hand)
    assert history["train_batches_labelled"] == [1.0]


class InOrder(Proportional):
    """A sampling of a user's own: one loader after the other."""

    def updates(self, counts: Any, random: Any) -> list[Any]:
        return [(name,) for name, count in counts.items() for _ in range(count)]


def test_the_default_takes_each_batch_once() -> None:
    data, seen = parts(), []
    watch = handler("Watch", batch_begin=lambda estimator, batch: seen.append(batch))
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    estimator.fit(data, epochs=1, event_handlers=[*SILENT, watch])
    taken = [(batch.name, id(batch.batches[batch.name])) for batch in seen]
    assert sorted(taken) == sorted((name, id(each)) for name in data for each in data[name])


@pytest.mark.parametrize("kind", ["tuples", "an iterator with names"])
def test_batches_of_a_combined_spec_have_the_order_or_the_names_of_their_part(kind: str) -> None:
    data = parts()
    digit = TaskSpec(
        outputs="class", labels=["class"], losses={"class": CE}, inputs=["image"], batch=["class", "image"]
    )
    size = TaskSpec(outputs="size", labels=["size"], losses={"size": L2}, inputs=["image"])
    spec = TaskSpec.combine(shared=["image"], digits=digit, sizes=size)
    image, digits = map(np.concatenate, zip(*data["digit"]))
    turned = {
        "digits": [(label, image) for image, label in data["digit"]]
        if kind == "tuples"
        else list(iterate(mx.io.NDArrayIter({"image": image}, {"class": digits}, batch_size=8))),
        "sizes": [{"image": image, "size": label} for image, label in data["size"]],
    }
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    by_hand(hand, in_turn(data, 4))
    estimator = MultiEstimator(net, spec, SGD)
    history = estimator.fit(turned, turned, epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(net, hand)
    assert history["val_digits/class"][0] > 0


def test_a_batch_fn_gets_the_batches_as_they_are() -> None:
    data = parts()
    named = {
        name: [{"x": image, "y": label, "what": name} for image, label in batches]
        for name, batches in data.items()
    }
    spec = two_head_spec(batch_fn=lambda batch: {"image": batch["x"], batch["what"]: batch["y"]})
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    by_hand(hand, in_turn(data, 4))
    MultiEstimator(net, spec, SGD).fit(named, epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(net, hand)


def test_labels_may_be_missing_too() -> None:
    data = parts(sizes=24)
    data["size"][1][1][2:] = np.nan
    spec = two_head_spec(labels=["digit", LabelSpec("size", missing="nan")])
    hand, net = twins(lambda: two_heads("hybrid"), data["digit"][0][0])
    present = {
        **data,
        "size": [(x[:2], y[:2]) if i == 1 else (x, y) for i, (x, y) in enumerate(data["size"])],
    }
    by_hand(hand, in_turn(present, 3))
    estimator = MultiEstimator(hybridized(net), spec, SGD)
    history = estimator.fit(data, epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert_same_parameters(net, hand)
    assert history["train_coverage_size"] == [pytest.approx(18 / 24)]
