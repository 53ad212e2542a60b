"""Losses of scope "batch" on torch: equal to MXNet, and gluoncv's SSD loss as a graph of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError
from multifit.gluon.compat import mx
from multifit.gluon.execution.multi_box import multi_box_loss
from multifit.seeding import seed_everything
from tests.common.nets import hybridized
from tests.common.specs import CE
from tests.numerics.test_batch_scope import multibox, scenes, spec, tiny_ssd
from tests.torch.agreement import assert_agree, normal
from tests.torch.fits import assert_engines_agree, batches
from tests.torch.runs import PAIRS, assert_resumes, values
from tests.torch.test_engine import ADAM, Case, assert_case_agrees, made, spec_with

from gluoncv.loss import SSDMultiBoxLoss  # isort: skip


class OfAll(mx.gluon.HybridBlock):
    """The mean of all devices' squares, as a list for each device."""

    def __init__(self) -> None:
        super().__init__()
        self.hybridize()

    def hybrid_forward(self, F: Any, sizes: Any, labels: Any) -> Any:
        return [F.mean(F.square(size - label)) for size, label in zip(sizes, labels)]


class TwoParts(OfAll):
    """A learned share of the squares, one array for all devices; and the distances."""

    def __init__(self) -> None:
        super().__init__()
        self.share = self.params.get("share", shape=(1,), init="ones", dtype="float64")

    def hybrid_forward(self, F: Any, sizes: Any, labels: Any, share: Any) -> Any:
        squares = F.add_n(*[F.square(size - label) for size, label in zip(sizes, labels)])
        distances = [F.abs(size - label) for size, label in zip(sizes, labels)]
        return F.broadcast_mul(squares, share), distances


class Constant(OfAll):
    """A loss through which no gradient flows."""

    def hybrid_forward(self, F: Any, sizes: Any, labels: Any) -> Any:
        return F.BlockGrad(F.mean(sizes[0] - labels[0]))


def spec_of(loss: Any, digit: Any = CE, **options: Any) -> Any:
    losses = {"digit": digit, "all": LossSpec(loss, "size", "size", scope="batch", **options)}
    losses = {name: loss for name, loss in losses.items() if loss is not None}
    return spec_with(losses=losses, unused=["weight", *["digit"] * (digit is None)], metrics=None)


def every_other(slots: Any) -> Any:
    return (slots["weight"] > 0.5) * 1.0


def none_in_small_batches(slots: Any) -> Any:
    return slots["weight"] * float(len(slots["weight"]) == 8)


CASES: dict[str, Callable[[], Any]] = {
    "beside another loss": lambda: spec_of(OfAll()),
    "alone": lambda: spec_of(OfAll(), digit=None),
    "weighted": lambda: spec_of(OfAll(), weight=0.3),
    "a weight that is a function": lambda: spec_of(OfAll(), weight=lambda state: 1 / (1 + state.step)),
    "a normalizer": lambda: spec_of(OfAll(), normalize_by=every_other),
    "a normalizer of 0": lambda: spec_of(OfAll(), normalize_by=none_in_small_batches, weight=2.0),
    "a normalizer that is a number": lambda: spec_of(
        OfAll(), normalize_by=lambda slots: float(len(slots["size"]) // 8)
    ),
    "parts and parameters": lambda: spec_of(TwoParts(), returns=["share", "distance"]),
    "without a gradient": lambda: spec_of(Constant(), digit=None),
}


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_mxnet(name: str) -> None:
    assert_case_agrees(Case(spec=CASES[name]))


@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
def test_a_run_resumes_on_either_engine(engines: tuple[str, str], tmp_path: Path) -> None:
    case = Case(spec=CASES["a normalizer of 0"], data=batches((8, 8, 5)))

    def make(engine: str) -> MultiEstimator:
        net, declared, trainers, _ = made(case)
        net.initialize(mx.init.Xavier())
        net(mx.nd.zeros((2, 6), dtype="float64"))
        return MultiEstimator(net, declared, trainers, engine=engine)

    assert_resumes(make, tmp_path, engines, data=case.data)


# ---- SSD ---------------------------------------------------------------------------------------------------

ARGUMENTS = ["cls", "box"], ["cls_targets", "box_targets"]


@pytest.mark.parametrize("matched", [0.4, 0.0])
def test_ssds_loss_as_a_graph(matched: float) -> None:
    random, loss = np.random.RandomState(0), SSDMultiBoxLoss(min_hard_negatives=2, rho=0.3)
    classes = random.randint(0, 4, (3, 9)) * (random.rand(3, 9) < matched).astype("float64")

    def as_symbols(*symbols: Any) -> Any:
        return [part[0] for part in multi_box_loss(loss, mx.sym, *[[symbol] for symbol in symbols])]

    assert_agree(as_symbols, normal(3, 9, 4), normal(3, 36), classes, normal(3, 9, 4), constant=(2, 3))


class MultiBox(mx.gluon.HybridBlock):
    """SSD's loss as our graph with MXNet too, where it runs in float64."""

    _negative_mining_ratio, _min_hard_negatives, _rho, _lambd = 3, 0, 1.0, 1.0

    def hybrid_forward(self, F: Any, *arguments: Any) -> Any:
        return multi_box_loss(self, F, *arguments)


def test_twenty_steps_of_ssd_in_float64() -> None:
    loss = LossSpec(
        hybridized(MultiBox()),
        *ARGUMENTS,
        returns=["sum", "cls", "box"],
        scope="batch",
        normalize_by=lambda slots: slots["cls_targets"] > 0,
    )
    assert_case_agrees(
        Case(net=tiny_ssd, spec=lambda: spec({"mb": loss}), data=scenes([8, 8, 8, 8, 5], True))
    )


def test_ssd_trains_as_with_mxnet() -> None:
    def fit(engine: str) -> Any:
        seed_everything(1)
        estimator = MultiEstimator(hybridized(tiny_ssd()), multibox(0.5), ADAM, engine=engine)
        data = scenes([8, 8, 8, 5], without_positives=True)
        history = estimator.fit(data, data, epochs=3, event_handlers=[])
        return dict(history), values(estimator)

    assert_engines_agree(fit, 2e-4)


class OwnMultiBox(SSDMultiBoxLoss):
    """A subclass, which may do anything."""

    def forward(self, *arguments: Any) -> Any:
        return super().forward(*arguments)[0]


def zeros(cls: Any, box: Any, classes: Any, boxes: Any) -> Any:
    return [mx.nd.sum(0 * each) for each in box]


@pytest.mark.parametrize("loss", [zeros, OwnMultiBox()], ids=["function", "subclass"])
def test_losses_that_are_no_graph_are_refused(loss: Any) -> None:
    declared = LossSpec(loss, *ARGUMENTS, scope="batch")
    estimator = MultiEstimator(hybridized(tiny_ssd()), spec({"mb": declared}), ADAM, engine="torch")
    with pytest.raises(SpecError, match="cannot be part of the graph; make it a HybridBlock and hybridize"):
        estimator.fit(scenes([8]), epochs=1, event_handlers=[])
