"""MXNet checks a few samples of a batch for PyTorch, and finds what it finds in the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.compat import mx
from multifit.gluon.execution.stage import FEW
from tests.common.data import two_head_arrays
from tests.common.nets import TWO_HEADS, add_layers, as_tuple, hybridized, two_heads
from tests.common.sequences import sequence_net, sequence_spec
from tests.common.specs import L2, one_loss_spec, two_head_spec
from tests.torch.fits import assert_close

SAMPLES = 21
TOKENS = np.random.RandomState(0).randint(0, 20, (SAMPLES, 5)).astype("float32")
HEADS = [*two_head_arrays(SAMPLES).values()]
TIME_MAJOR = [np.zeros((FEW, SAMPLES, 4), "float32"), np.zeros((FEW, SAMPLES, 2), "float32")]


def of_one_size(digit: Any, size: Any) -> Any:
    return digit, size.reshape((SAMPLES, -1))


def of_two_rows(digit: Any, size: Any) -> Any:
    """Return an output of two rows per sample, and one of a constant size."""
    return digit.reshape((-1, 3)), size, digit.tile((2, 1)), digit.sum(axis=0)


SIZES: list[int] = []  # of the batches with which a net was called


class Recorded(mx.gluon.Block):
    """Two heads whose outputs have a form that a function gives them."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        add_layers(self, form, 8, None, TWO_HEADS)

    def forward(self, image: Any) -> Any:
        SIZES.append(image.shape[0])
        features = self.body(image)
        return self.form(*[getattr(self, name)(features) for name in self.names])


def recorded(form: Any = as_tuple) -> Any:
    return hybridized(Recorded(form))


OUTPUTS = ["digit", "size", "rows", "sums"]
# a net, its spec, a batch, and the axis of the samples
CASES: dict[str, Any] = {
    "traced": (lambda: two_heads("hybridized"), two_head_spec(), HEADS, 0),
    "recorded": (recorded, two_head_spec(), HEADS, 0),
    "of one size": (lambda: recorded(of_one_size), two_head_spec(), HEADS, 0),
    "rows": (lambda: recorded(of_two_rows), two_head_spec(outputs=OUTPUTS, unused=OUTPUTS[2:]), HEADS, 0),
    "tokens": (lambda: sequence_net("token"), sequence_spec("token"), [TOKENS, TOKENS % 3], 0),
    "time first": (
        lambda: hybridized(mx.gluon.nn.Dense(2, flatten=False)),
        one_loss_spec(mx.gluon.loss.L2Loss(batch_axis=1)), TIME_MAJOR, 1,
    ),
}  # fmt: skip


def estimator_of(net: Any, spec: TaskSpec, engine: str) -> MultiEstimator:
    return MultiEstimator(net, spec, engine=engine, context=None if engine == "torch" else mx.cpu())


@pytest.mark.parametrize("case", CASES)
def test_plans_are_those_of_the_whole_batch(case: str) -> None:
    make, spec, batch, axis = CASES[case]
    mxnet, torch = (
        estimator_of(make(), spec, engine).check([batch], [batch], batch_axis=axis)
        for engine in ("mxnet", "torch")
    )
    assert torch.samples == mxnet.samples == SAMPLES
    for one, other in ((mxnet.train, torch.train), (mxnet.evaluate, torch.evaluate)):
        assert one and other and one.rows == other.rows


@pytest.mark.parametrize(("form", "sizes"), [(as_tuple, {FEW}), (of_one_size, {FEW, SAMPLES})])
def test_the_net_runs_on_few_samples_if_that_works(form: Any, sizes: set[int]) -> None:
    net = recorded(form)
    SIZES.clear()
    estimator_of(net, two_head_spec(), "torch").check([HEADS], [HEADS])
    assert set(SIZES) == sizes
    expected = estimator_of(net, two_head_spec(), "mxnet").predict([HEADS])
    assert_close(expected, estimator_of(net, two_head_spec(), "torch").predict([HEADS]), tolerance=1e-5)


def test_problems_are_those_of_the_whole_batch() -> None:
    late = [array.copy() for array in HEADS]
    late[1][SAMPLES - 1] = 3
    unlike = two_head_spec(losses={"digit": LossSpec(L2, "digit", "size"), "size": L2})
    for spec, batch in ((two_head_spec(), late), (unlike, HEADS)):
        messages = []
        for engine in ("mxnet", "torch"):
            with pytest.raises(SpecError) as raised:
                estimator_of(two_heads("hybridized"), spec, engine).fit([batch], [batch], epochs=1)
            messages.append(str(raised.value))
        assert messages[0] == messages[1] and str(SAMPLES) in messages[0]


def test_a_metric_may_need_more_samples() -> None:
    def spread(labels: Any, outputs: Any) -> float:
        if len(np.unique(labels)) == 1:
            raise ValueError("only one class")
        return float(np.std(labels))

    digit = np.repeat([0.0, 1.0], [SAMPLES - 1, 1]).astype("float32")
    spec, batch = two_head_spec(metrics={"spread": MetricSpec(spread, "digit", "digit")}), [*HEADS]
    batch[1] = digit
    estimator = estimator_of(two_heads("hybridized"), spec, "torch")
    history = estimator.fit([batch], [batch], epochs=2, event_handlers=[])
    assert history["train_spread"] == history["val_spread"] == pytest.approx([np.std(digit)] * 2)


def test_indices_are_those_of_the_whole_batch() -> None:
    estimator, late = estimator_of(sequence_net("token"), sequence_spec("token"), "torch"), TOKENS.copy()
    late[SAMPLES - 1] = 20
    for tokens, warned in ((TOKENS, False), (late, True)):
        notices = estimator.check([[tokens, tokens % 3]]).notices
        assert any('the input "data" holds 20' in notice for notice in notices) == warned
