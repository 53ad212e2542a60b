"""Methods of balancing on torch where gradients add up over batches: equal to MXNet, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from multifit import (
    GradientAccumulation,
    MultiEstimator,
    TrainerSpec,
)
from multifit.balance import (
    DWA,
    MGDA,
    GradNorm,
    UPGrad,
)
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import PAIRS, assert_resumes, values
from tests.torch.test_balance import ADAM, BATCHES, DEFAULTS, METHODS, SGD, net_of

ADDED: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]]]] = {
    "by a handler": (lambda: ADAM, lambda: [GradientAccumulation(2)]),
    "by the trainer": (lambda: TrainerSpec(".*", "sgd", SGD, every=2, accumulate=True), list),
    "by one of two trainers": (
        lambda: {
            "body": TrainerSpec("body.*", "sgd", SGD, every=3, accumulate=True, clip_norm=0.2),
            "heads": TrainerSpec("digit.*|size.*", "adam"),
        },
        list,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [UPGrad(on="parameters"), MGDA(on="parameters", every=2), GradNorm(on="body.0.weight"), UPGrad(), DWA()],
    ids=["each update", "every second", "a pattern", "features", "losses"],
)
@pytest.mark.parametrize("how", ADDED)
def test_gradients_that_add_up_are_weighed_as_with_mxnet(how: str, method: Any) -> None:
    """Those of parameters once for each update; in two fits, of which the first leaves a batch over."""

    def fit(engine: str) -> Any:
        make_trainers, make_handlers = ADDED[how]
        estimator = MultiEstimator(net_of(), two_head_spec(), make_trainers(), balance=method, engine=engine)
        for _ in range(2):
            history = estimator.fit(BATCHES, epochs=1, event_handlers=make_handlers())
        return dict(history), values(estimator)

    assert_engines_agree(fit)


@pytest.mark.parametrize("name", METHODS)
def test_a_handler_adds_up_as_a_trainer_does(name: str) -> None:
    """Bit for bit, with the same weights and gradients, of an update that waits for three batches."""
    method, *declared = METHODS[name]
    spec, data, _ = [*declared, *DEFAULTS[len(declared) :]]
    results = []
    for rhythm, handlers in (({}, [GradientAccumulation(3)]), ({"every": 3, "accumulate": True}, [])):
        trainers = TrainerSpec(".*", "sgd", SGD, **rhythm)
        estimator = MultiEstimator(net_of(), spec(), trainers, balance=method, engine="torch")
        history = estimator.fit(data(), epochs=2, event_handlers=handlers)
        results.append((dict(history), values(estimator)))
    np.testing.assert_equal(*results)


@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
def test_a_run_resumes_amid_the_batches_of_an_update(
    engines: tuple[str, str], how: str, tmp_path: Path
) -> None:
    """Bit for bit on torch."""

    make_trainers, make_handlers = ADDED[how]

    def make(engine: str) -> MultiEstimator:
        method = UPGrad(on="parameters")
        return MultiEstimator(net_of(), two_head_spec(), make_trainers(), balance=method, engine=engine)

    assert_resumes(make, tmp_path, engines, 7, handlers=make_handlers)
