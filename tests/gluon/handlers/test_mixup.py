"""MixUp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, SpecError, TaskSpec
from multifit.gluon.handlers import MixUp

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon

from .training import DATA, assert_close, fit, make_net

CE = gluon.loss.SoftmaxCELoss()


def by_hand(net: Any, data: Any, random: Any, objective: Any, shares: int = 1, alpha: float = 0.4) -> Any:
    """The loop with mixup; ``objective(output, label, permuted label, x, kept)`` is the sum for a batch."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for x, y in data * 2:
        kept, size = random.beta(alpha, alpha), len(x) // shares
        order = np.concatenate([random.permutation(size) + i * size for i in range(shares)])
        mixed = kept * x + (1 - kept) * x[mx.nd.array(order)]
        with autograd.record():
            total = objective(net(mixed), y, y[mx.nd.array(order)], mixed, kept)
        total.backward()
        trainer.step(len(x))
    return net


def plain(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
    return (kept * CE(out, y) + (1 - kept) * CE(out, permuted)).sum()


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("hybrid", [True, False])
def test_training_equals_a_hand_written_loop(devices: int, hybrid: bool) -> None:
    ours = fit(MixUp("data", "label", random=7), devices=devices, hybrid=hybrid)
    theirs = by_hand(make_net(), DATA, np.random.RandomState(7), plain, devices)
    assert_close(ours, theirs)


def test_it_uses_numpys_generator_by_default() -> None:
    np.random.seed(11)
    ours = fit(MixUp(alpha=2.0))
    assert_close(ours, by_hand(make_net(), DATA, np.random.RandomState(11), plain, alpha=2.0))


@pytest.mark.parametrize("by", [None, "weight"])
def test_one_loss_among_others(by: str | None) -> None:
    """Weighted, normalised by a slot or by the samples; another loss keeps its own labels."""

    def first(out: Any, label: Any) -> Any:
        return (CE(out, label).mean() if by is None else CE(out, label),)  # a part; a scalar counts as mean

    spec = TaskSpec(
        ["y"],
        ["label", "weight"],
        {
            "mixed": LossSpec(first, "y", "label", 0.7, returns=["ce"], normalize_by=by),
            "own": LossSpec(
                lambda out, label, data: CE(out, label) + (data**2).mean(), "y", ["label", "data"]
            ),
        },
        batch_fn=lambda batch: {"data": batch[0], "label": batch[1], "weight": batch[1] * 0 + 2},
        unused=["weight"] if by is None else (),
    )
    ours = fit(MixUp("data", "label", loss="mixed", random=7), spec=spec)

    def objective(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
        mixed = 0.7 / (1 if by is None else 2) * (kept * CE(out, y) + (1 - kept) * CE(out, permuted))
        return (mixed + CE(out, y)).sum()

    assert_close(ours, by_hand(make_net(), DATA, np.random.RandomState(7), objective))


def test_figures_compare_with_the_samples_own_labels() -> None:
    class Look:
        """Sees what the net and the losses see."""

        def __init__(self) -> None:
            self.losses: list[float] = []

        def batch_end(self, estimator: Any, pred: Any, label: Any) -> None:
            self.losses.append(float(CE(pred[0], label[0]).mean().asscalar()))

    look = Look()
    history = fit([MixUp(random=3), look], epochs=1).history
    assert history["train_ce"][0] == pytest.approx(np.mean(look.losses), rel=1e-5)


def test_inputs_that_are_labels_too_are_not_permuted() -> None:
    """An autoencoder with a class: the picture as a label is the mixed one."""
    spec = TaskSpec(
        ["y"],
        ["label"],
        {
            "again": LossSpec(lambda out, x: (out.mean(axis=1) - x.mean(axis=1)) ** 2, "y", "data"),
            "ce": LossSpec(CE, "y", "label"),
        },
    )
    handler = MixUp(random=1)
    fit(handler, spec=spec, epochs=1)
    assert [term.key for term in handler._blend.terms] == ["ce"]


def test_its_own_generator_continues_from_a_checkpoint() -> None:
    first, second, third = MixUp(random=4), MixUp(random=np.random.RandomState(9)), MixUp()
    first._random.beta(1, 1)
    second.load_state_dict(first.state_dict())
    assert first._random.beta(1, 1) == second._random.beta(1, 1)
    third.load_state_dict(first.state_dict())  # it draws from NumPy's, which is restored by itself
    assert third.state_dict() == {"random": None}
    first.load_state_dict(third.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": "dta"}, 'there is no slot "dta" .did you mean "data"..; valid are "data", "label"'),
        ({"label": "labels"}, 'there is no slot "labels" .did you mean "label"..'),
        ({"loss": "c"}, 'there is no loss "c" .did you mean "ce"..; valid are "ce"'),
        ({"inputs": ["data", "label"]}, "no loss reads a label that is permuted with the inputs"),
    ],
)
def test_unknown_names_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"MixUp: {message}"):
        fit(MixUp(**arguments))


def test_slots_that_cannot_be_mixed_are_errors() -> None:
    integers = [(x.astype("int32"), y) for x, y in DATA]
    with pytest.raises(SpecError, match='MixUp: the slot "data" is int32, and only real numbers'):
        fit(MixUp(), data=integers)
    spec = TaskSpec(
        ["y"],
        ["label"],
        {"ce": LossSpec(lambda outs, ys: [CE(o, y).mean() for o, y in zip(outs, ys)], scope="batch",
                        outputs="y", labels="label")},
    )  # fmt: skip
    with pytest.raises(SpecError, match=r'MixUp: losses\["ce"\] has scope="batch"'):
        fit(MixUp(), spec=spec)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_invalid_alpha_is_an_error(alpha: float) -> None:
    with pytest.raises(ValueError, match="MixUp: alpha is .*; valid is a finite number above 0"):
        MixUp(alpha=alpha)
