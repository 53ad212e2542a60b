"""Methods of balancing on torch: in lower precision, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, SpecError
from multifit.balance import DWA, IMTLL, GradNorm, UPGrad
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.nets import TWO_HEADS, Heads, two_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import codes_of
from tests.torch.runs import values
from tests.torch.test_balance import ADAM, BATCHES


def heads_alone() -> Any:
    """Heads that share nothing: the body has no parameter."""
    return Heads(body=mx.gluon.nn.HybridLambda(lambda F, image: image * 2), **TWO_HEADS)


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "nothing shared": (
        heads_alone, UPGrad(), "the tasks share no parameter"),
    "a pattern of one task": (
        lambda: two_heads("hybrid"), UPGrad(on="digit.*"), 'on="digit.*" selects no parameter that tasks'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, method, message = REFUSED[name]
    net = make()
    net.hybridize()
    estimator = MultiEstimator(net, two_head_spec(), ADAM, balance=method, engine="torch")
    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])


@pytest.mark.parametrize("method", [DWA(), UPGrad(), UPGrad(on="parameters")], ids=["losses", "cut", "rows"])
def test_in_bfloat16(method: Any) -> None:
    def fit(precision: str) -> tuple[float, str]:
        options: Any = {"balance": method, "precision": precision, "engine": "torch"}
        estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), ADAM, **options)
        estimator.net.initialize(mx.init.Constant(0.1))
        estimator.check(BATCHES)
        history = estimator.fit(BATCHES, epochs=2, event_handlers=[])
        assert all(("bfloat16" in code) == (precision == "bfloat16") for code in codes_of(estimator))
        return history["train_loss"][-1]

    assert fit("bfloat16") == pytest.approx(fit("float32"), rel=0.02)


@pytest.mark.parametrize(
    "method",
    [IMTLL(), UPGrad(), GradNorm(on="body.*")],
    ids=lambda m: type(m).__name__,
)
def test_float16_weighs_as_float32_does(method: Any) -> None:
    def fit(precision: str, scale: float = 2.0**20) -> tuple[dict[str, Any], Any]:
        spec = two_head_spec(losses={"digit": LossSpec(CE, weight=1e-7), "size": LossSpec(L2, weight=1e-7)})
        options: Any = {"balance": method, "precision": precision, "engine": "torch"}
        estimator = MultiEstimator(two_heads("hybridized"), spec, ADAM, **options)
        estimator.net.initialize(mx.init.Xavier(rnd_type="gaussian"))
        if precision == "float16":
            estimator._runner.load({**estimator._runner.state(), "scale": scale})
        history = estimator.fit(BATCHES, epochs=2, event_handlers=[])
        return dict(history), values(estimator)

    seed_everything(3)
    full, _ = fit("float32")
    seed_everything(3)
    low, _ = fit("float16")
    assert any(figure.startswith("train_weight") for figure in full)
    for figure in full:
        np.testing.assert_allclose(low[figure], full[figure], rtol=0.05, atol=1e-9, err_msg=figure)


def test_gradients_that_overflow_weigh_nothing() -> None:
    options: Any = {"balance": UPGrad(), "precision": "float16", "engine": "torch"}
    estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), ADAM, **options)
    estimator._runner.load({**estimator._runner.state(), "scale": 2.0**24})
    history = estimator.fit(BATCHES, epochs=4, event_handlers=[])
    assert estimator._runner.state()["scale"] < 2.0**24
    assert (
        np.isfinite(history["train_gradnorm_digit"][-1]) and np.isfinite(history["train_weight_digit"]).all()
    )
    assert history["train_loss"][-1] < history["train_loss"][0]
