"""Methods of balancing on torch where gradients add up over batches: equal to MXNet, in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multifit import MultiEstimator, TrainerSpec
from multifit.balance import DWA, MGDA, GradNorm, UPGrad
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import PAIRS, assert_resumes, values
from tests.torch.test_balance import ADAM, BATCHES, SGD, net_of

ADDED: dict[str, Callable[[], dict[str, Any]]] = {
    "by all trainers": lambda: {"trainers": ADAM, "accumulate": 2},
    "by one of two trainers": lambda: {
        "trainers": {
            "body": TrainerSpec("body.*", "sgd", SGD, every=3, accumulate=True, clip_norm=0.2),
            "heads": TrainerSpec("digit.*|size.*", "adam"),
        }
    },
}


@pytest.mark.parametrize(
    "method", [UPGrad(), MGDA(every=2), GradNorm(), DWA()], ids=["UPGrad", "MGDA", "GradNorm", "DWA"]
)
@pytest.mark.parametrize("how", ADDED)
def test_gradients_that_add_up_are_weighed_as_with_mxnet(how: str, method: Any) -> None:
    """In two fits, of epochs that leave a batch over."""

    def fit(engine: str) -> Any:
        estimator = MultiEstimator(net_of(), two_head_spec(), balance=method, engine=engine, **ADDED[how]())
        for _ in range(2):
            history = estimator.fit(BATCHES, epochs=1, event_handlers=[])
        return dict(history), values(estimator)

    assert_engines_agree(fit)


@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
def test_a_run_resumes_amid_the_batches_of_an_update(
    engines: tuple[str, str], how: str, tmp_path: Path
) -> None:
    """Bit for bit on torch."""

    def make(engine: str) -> MultiEstimator:
        method = UPGrad()
        return MultiEstimator(net_of(), two_head_spec(), balance=method, engine=engine, **ADDED[how]())

    assert_resumes(make, tmp_path, engines, 7)
