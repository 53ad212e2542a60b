"""A run of a bridged net that goes on after a power cut is one without a stop, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multifit import Freeze, MetricSpec, MixUp, WeightAveraging
from multifit.balance import FAMO, STCH, UPGrad
from multifit.gluon.compat import mx
from multifit.sampling import Proportional
from tests.api import test_bound_losses as bound
from tests.common import whole_pass
from tests.common.data import two_head_arrays
from tests.common.nets import normed_heads
from tests.common.specs import two_head_spec
from tests.torch.runs import RHYTHMS, Run, assert_resumes, handled, net_of
from tests.torch.test_engine import BOUND, LOADERS, OWN_OPTIMIZERS, SEVERAL, WORDS, scheduled

DROPOUT = Run(normed_heads, dtype="float32")


class Own(mx.metric.PCC):
    """Updated batch by batch, unlike MXNet's own."""


class OfWholePass(Run):
    def estimator(self, engine: str = "torch") -> Any:
        return whole_pass.estimator(engine=engine)


def adversaries() -> Any:
    return bound.make_net(mx.gluon.nn.BatchNorm(in_channels=8), mx.gluon.nn.Dropout(0.3))


def cut() -> list[Any]:
    """Batches of several sizes, of which the check of a resumed run sees another than the first."""
    arrays, bounds = two_head_arrays(73).values(), [0, 7, 14, 21, 24, *range(31, 74, 7)]
    return [tuple(array[start:end] for array in arrays) for start, end in zip(bounds, bounds[1:])]


def measured() -> Any:
    errors = {kind: MetricSpec(mx.metric.create(kind), "size", "size") for kind in ("mae", "mse", "rmse")}
    return two_head_spec(metrics={**errors, "own": MetricSpec(Own(), "digit", "digit")})


def dropout(stop: int, *handlers: Any, **fields: Any) -> tuple[Run, int]:
    return handled(*handlers, of=DROPOUT, **fields), stop


RUNS: dict[str, tuple[Run, int]] = {
    "dropout": dropout(5),
    "rhythms": dropout(4, trainers=RHYTHMS),
    "a schedule": dropout(5, trainers=scheduled("nag", 0.1, momentum=0.9)),
    "own optimizers": dropout(6, trainers=OWN_OPTIMIZERS),
    "bfloat16": (Run(net_of, dtype="float32", options={"precision": "bfloat16"}), 3),
    "metrics": (Run(spec=measured, data=cut()), 3),
    "figures of the whole pass": (OfWholePass(data=whole_pass.cut([8, 8, 1, 12])), 3),
    "one task": dropout(5, spec=lambda: two_head_spec().only("digit"), trainers=OWN_OPTIMIZERS),
    "mixed samples": dropout(4, lambda: MixUp(random=3), options={"accumulate": 3}),
    "averages": dropout(5, lambda: WeightAveraging("ema", decay=0.8)),
    "frozen": dropout(3, lambda: Freeze("body.*", 5, "batch"), options={"accumulate": 2}),
    "bound losses": (replace(BOUND, net=adversaries), 5),
    "loaders": dropout(3, trainers=SEVERAL, data=LOADERS, fit={"sampling": Proportional()}),
    "carried state": (WORDS, 4),
    "weighed losses": dropout(7, options={"balance": FAMO()}),
    "weighed tasks": dropout(7, options={"balance": STCH()}),
    "balanced gradients": dropout(7, options={"balance": UPGrad()}, trainers=RHYTHMS),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes(name: str, tmp_path: Path) -> None:
    assert_resumes(*RUNS[name], tmp_path)
