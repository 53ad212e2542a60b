"""MixUp."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MixUp, SpecError, TaskSpec
from tests.common.grids import two_settings
from tests.common.specs import CE

import mxnet as mx  # isort: skip

from .training import DATA, SOME, On, assert_close, by_hand, fit


def mixed(random: Any, loss: Callable[..., Any], shares: int = 1, alpha: float = 0.4) -> Callable[..., Any]:
    """The objective of mixup: ``loss(output, label, permuted label, x, kept)`` for each sample."""

    def objective(net: Any, x: Any, y: Any) -> Any:
        kept, size = random.beta(alpha, alpha), len(x) // shares
        order = mx.nd.array(np.concatenate([random.permutation(size) + i * size for i in range(shares)]))
        x = kept * x + (1 - kept) * x[order]
        return loss(net(x), y, y[order], x, kept)

    return objective


def plain(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
    return kept * CE(out, y) + (1 - kept) * CE(out, permuted)


@two_settings
def test_training_equals_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    """With a generator of its own, or with NumPy's."""
    ours = fit(MixUp("data", "label", random=7), devices, hybrid)
    assert_close(ours, by_hand(mixed(np.random.RandomState(7), plain, len(devices))))
    np.random.seed(11)
    ours = fit(MixUp(alpha=2.0), devices, hybrid)
    assert_close(ours, by_hand(mixed(np.random.RandomState(11), plain, len(devices), alpha=2.0)))


@pytest.mark.parametrize("by", [None, "weight"])
def test_one_loss_among_others(by: str | None) -> None:
    """Weighted, normalised by a slot or by the samples; another loss keeps its own labels."""

    def first(out: Any, label: Any) -> Any:
        return (CE(out, label).mean() if by is None else CE(out, label),)  # a part; a scalar counts as mean

    def second(out: Any, label: Any, data: Any) -> Any:
        return CE(out, label) + (data**2).mean()

    losses = {
        "mixed": LossSpec(first, "y", "label", 0.7, returns=["ce"], normalize_by=by),
        "own": LossSpec(second, "y", ["label", "data"]),
    }
    spec = TaskSpec(
        outputs=["y"],
        labels=["label", "weight"],
        losses=losses,
        batch_fn=lambda batch: {"data": batch[0], "label": batch[1], "weight": batch[1] * 0 + 2},
        unused=["weight"] if by is None else (),
    )
    ours = fit(MixUp("data", "label", loss="mixed", random=7), spec=spec)

    def loss(out: Any, y: Any, *rest: Any) -> Any:
        return 0.7 / (1 if by is None else 2) * plain(out, y, *rest) + CE(out, y)

    assert_close(ours, by_hand(mixed(np.random.RandomState(7), loss)))


def test_figures_compare_with_the_samples_own_labels() -> None:
    losses: list[float] = []

    def batch_end(estimator: Any, pred: Any, label: Any) -> None:
        losses.append(float(CE(pred[0], label[0]).mean().asscalar()))

    history = fit([MixUp(random=3), On(batch_end=batch_end)], epochs=1).history
    assert history["train_ce"][0] == pytest.approx(np.mean(losses), rel=1e-5)


def test_inputs_that_are_labels_too_are_not_permuted() -> None:
    """An autoencoder with a class: the picture as a label is the mixed one."""
    losses = {
        "again": LossSpec(lambda out, x: (out.mean(axis=1) - x.mean(axis=1)) ** 2, "y", "data"),
        "ce": LossSpec(CE, "y", "label"),
    }
    handler = MixUp(random=1)
    fit(handler, losses=losses, epochs=1)
    assert [term.key for term in handler._blend.terms] == ["ce"]


def test_what_is_present_is_permuted_once_whoever_reads_it() -> None:
    losses = {str(i): LossSpec(CE, "y", "label", weight=0.5) for i in range(2)}
    spec = TaskSpec(outputs=["y"], labels=[LabelSpec("label", missing=-1)], losses=losses)

    def loss(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
        own, other = ((label >= 0) * CE(out, label.relu()) for label in (y, permuted))
        return (kept * own + (1 - kept) * other) * len(y) / (y >= 0).sum()

    ours = fit(MixUp(random=7), spec=spec, data=SOME)
    assert_close(ours, by_hand(mixed(np.random.RandomState(7), loss), SOME))


def test_its_own_generator_is_copied_and_continues_from_a_checkpoint() -> None:
    first, second, third = MixUp(random=4), MixUp(random=np.random.RandomState(9)), MixUp()
    assert copy.deepcopy(first)._random is not first._random
    assert copy.deepcopy(third)._random is np.random
    first._random.beta(1, 1)
    second.load_state_dict(first.state_dict())
    assert first._random.beta(1, 1) == second._random.beta(1, 1)
    third.load_state_dict(first.state_dict())  # it draws from NumPy's, which is restored by itself
    assert third.state_dict() == {"random": None}
    first.load_state_dict(third.state_dict())


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ({"inputs": "dta"}, {}, 'there is no slot "dta" .did you mean "data"..; valid are "data", "label"'),
        ({"label": "labels"}, {}, 'there is no slot "labels" .did you mean "label"..'),
        ({"loss": "c"}, {}, 'there is no loss "c" .did you mean "ce"..; valid are "ce"'),
        ({"inputs": ["data", "label"]}, {}, "no loss reads a label that is permuted with the inputs"),
        ({}, {"data": [(x.astype("int32"), y) for x, y in DATA]},
         'the slot "data" is int32, and only real numbers'),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_an_error(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"MixUp: {message}"):
        fit(MixUp(**arguments), **options)
