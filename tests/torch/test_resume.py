"""A run of a bridged net that goes on after a power cut is one without a stop, bit for bit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from multifit import Freeze, MetricSpec, MixUp, MultiEstimator, TrainerSpec, WeightAveraging
from multifit.balance import FAMO, STCH, UPGrad
from multifit.gluon.compat import mx
from multifit.sampling import Proportional
from tests.common import language, whole_pass
from tests.common.data import two_head_arrays
from tests.common.specs import two_head_spec
from tests.torch import test_bound_losses as bound
from tests.torch.runs import RHYTHMS, assert_resumes, estimator_of
from tests.torch.test_engine import own_optimizers, scheduled
from tests.torch.test_turns import LOADERS, several

FREEZE = lambda: [Freeze("body.*", 5, "batch")]  # noqa: E731
NORMED = partial(estimator_of, "dropout")


class Own(mx.metric.PCC):
    """Updated batch by batch, unlike MXNet's own."""


def bound_losses() -> MultiEstimator:
    layers = mx.gluon.nn.BatchNorm(in_channels=8), mx.gluon.nn.Dropout(0.3)
    return MultiEstimator(bound.adversaries(*layers), bound.make_spec(), bound.trainers(), engine="torch")


def language_model() -> MultiEstimator:
    net = language.make_net(dtype="float64")
    return MultiEstimator(net, language.make_spec(), TrainerSpec(".*", "adam"), engine="torch")


def cut() -> list[Any]:
    """Batches of several sizes, of which the check of a resumed run sees another than the first."""
    arrays, bounds = two_head_arrays(73).values(), [0, 7, 14, 21, 24, *range(31, 74, 7)]
    return [tuple(array[start:end] for array in arrays) for start, end in zip(bounds, bounds[1:])]


def measured() -> Any:
    errors = {kind: MetricSpec(mx.metric.create(kind), "size", "size") for kind in ("mae", "mse", "rmse")}
    return two_head_spec(metrics={**errors, "own": MetricSpec(Own(), "digit", "digit")})


CASES: dict[str, tuple[Callable[[], MultiEstimator], dict[str, Any]]] = {
    "dropout": (NORMED, {}),
    "rhythms": (partial(NORMED, trainers=RHYTHMS), {"stop": 4}),
    "a schedule": (partial(NORMED, trainers=scheduled()), {}),
    "own optimizers": (partial(NORMED, trainers=own_optimizers()), {"stop": 6}),
    "bfloat16": (partial(estimator_of, precision="bfloat16"), {"stop": 3}),
    "metrics": (partial(estimator_of, spec=measured()), {"stop": 3, "data": cut()}),
    "figures of the whole pass": (
        lambda: whole_pass.estimator(engine="torch"), {"stop": 3, "data": whole_pass.cut([8, 8, 1, 12])}),
    "one task": (partial(NORMED, spec=two_head_spec().only("digit"), trainers=own_optimizers()), {}),
    "mixed samples": (partial(NORMED, accumulate=3), {"stop": 4, "handlers": lambda: [MixUp(random=3)]}),
    "averages": (NORMED, {"handlers": lambda: [WeightAveraging("ema", decay=0.8)]}),
    "frozen": (partial(NORMED, accumulate=2), {"stop": 3, "handlers": FREEZE}),
    "bound losses": (bound_losses, {"data": bound.BATCHES}),
    "loaders": (
        partial(NORMED, trainers=several()), {"stop": 3, "data": LOADERS, "sampling": Proportional()}),
    "carried state": (language_model, {"stop": 4, "data": language.BATCHES, "batch_axis": 1}),
    "weighed losses": (partial(NORMED, balance=FAMO()), {"stop": 7}),
    "weighed tasks": (partial(NORMED, balance=STCH()), {"stop": 7}),
    "balanced gradients": (partial(NORMED, balance=UPGrad(), trainers=RHYTHMS), {"stop": 7}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_run_resumes(name: str, tmp_path: Path) -> None:
    make, options = CASES[name]
    assert_resumes(make, tmp_path, **options)
