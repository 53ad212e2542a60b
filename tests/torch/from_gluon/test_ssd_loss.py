"""gluoncv's SSD loss on torch, as a graph of ours, equals MXNet's."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.step.loss_calls import multi_box_loss
from tests.common.nets import hybridized
from tests.numerics.test_ssd_loss import MINING, multibox, scenes, tiny_ssd
from tests.torch.from_gluon.agreement import assert_agree, normal
from tests.torch.test_engine import ADAM, Case, assert_case_agrees

from gluoncv.loss import SSDMultiBoxLoss  # isort: skip


@pytest.mark.parametrize("matched", [0.4, 0.0])
def test_as_operators(matched: float) -> None:
    random, loss = np.random.RandomState(0), SSDMultiBoxLoss(min_hard_negatives=2, rho=0.3)
    classes = random.randint(0, 4, (3, 9)) * (random.rand(3, 9) < matched).astype("float64")

    def as_symbols(*symbols: Any) -> Any:
        return multi_box_loss(loss, *symbols)

    assert_agree(as_symbols, normal(3, 9, 4), normal(3, 36), classes, normal(3, 9, 4), constant=(2, 3))


@pytest.mark.parametrize("options", [{}, MINING], ids=["defaults", "all options"])
def test_twenty_steps_in_float64(options: dict[str, Any]) -> None:
    case = Case(net=tiny_ssd, spec=lambda: multibox(**options), data=scenes([8, 8, 8, 8, 5], True))
    assert_case_agrees(case)


class OwnMultiBox(SSDMultiBoxLoss):
    """A subclass, which may do anything."""

    def forward(self, *arguments: Any) -> Any:
        return super().forward(*arguments)[0][0]


def test_a_subclass_is_no_graph_and_is_refused() -> None:
    loss = LossSpec(OwnMultiBox(), ["cls", "box"], ["cls_targets", "box_targets"])
    spec = TaskSpec(
        inputs=["x"], outputs=["cls", "box"], labels=["cls_targets", "box_targets"], losses={"mb": loss}
    )
    with pytest.raises(SpecError, match="cannot become a graph: .*; use F's operators on what it gets"):
        MultiEstimator(hybridized(tiny_ssd()), spec, ADAM, engine="torch")
