"""What is frozen and unfrozen before, between and within fits, and frozen BatchNorm layers, as with MXNet."""

from collections.abc import Callable
from typing import Any

import pytest

from multifit import Freeze, LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import MGDA
from multifit.gluon.compat import mx
from multifit.utils.seeding import seed_everything
from tests.common.nets import TWO_HEADS, Heads, normed_heads, sequential
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree, batches

BODY = r"body.*"
ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
TWO = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(digit|size).*", "adam")}


class Freezes:
    """Freezes the parameters that match a pattern, and unfreezes all others, when some steps begin."""

    def __init__(self, **patterns: str) -> None:
        self.patterns = patterns

    def batch_begin(self, estimator: Any) -> None:
        pattern = self.patterns.get(f"at{estimator.state.step}")
        if pattern is not None:
            estimator.unfreeze(".*")
            if pattern:
                estimator.freeze(pattern)


def data_norm() -> Any:
    """Statistics of the data, which nothing learns."""
    norm = mx.gluon.nn.BatchNorm(scale=False, center=False)
    return Heads(body=sequential(norm, mx.gluon.nn.Dense(8, activation="relu")), **TWO_HEADS)


def requested() -> Any:
    """A body that is frozen by its ``grad_req``."""
    net = normed_heads(dropout=0.0)
    net.body.collect_params().setattr("grad_req", "null")
    return net


BY_STEPS = Freezes(at0=BODY, at5="", at8=r"digit.*|body\.0\..*", at12=BODY, at17="")
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "by steps": ({}, [BY_STEPS]),
    "accumulated": ({"trainers": TrainerSpec(".*", "adam", every=3, accumulate=True)}, [BY_STEPS]),
    "by name": ({"frozen": [BODY]}, []),
    "by request": ({"net": requested}, []),
    "statistics alone": ({"frozen": [".*running.*"]}, []),
    "statistics of the data": ({"net": data_norm}, []),
    "statistics of the data, later": ({"net": data_norm}, [Freeze(BODY, until=2)]),
    "balanced": ({"balance": MGDA()}, [Freezes(at4=r"body\.0\.bias", at9="")]),
    "balanced by parameters": (
        {"balance": MGDA(on="parameters")}, [Freezes(at4=r"body\.1.*", at9="")]),
    "bound": (
        {"trainers": TWO, "losses": {"digit": CE, "size": LossSpec(L2, "size", "size", trainers="heads")}},
        [Freezes(at3=BODY, at7="", at11="(digit|size).*")]),
    "epochs": ({}, [Freeze(BODY, until=2)]),
    "batches": ({"accumulate": 2}, [Freeze(BODY, until=6, unit="batch")]),
}  # fmt: skip


def estimator_of(
    engine: str,
    net: Callable[[], Any] = lambda: normed_heads(dropout=0.0),
    losses: Any = None,
    trainers: Any = ADAM,
    **options: Any,
) -> MultiEstimator:
    seed_everything(3)
    made = net()
    made.cast("float64")
    made.hybridize()
    losses = losses or {"digit": CE, "size": L2}
    spec = two_head_spec(losses=losses, labels=["digit", "size", "weight"], unused=["weight"])
    return MultiEstimator(made, spec, trainers, engine=engine, **options)


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_mxnet(name: str) -> None:
    options, handlers = CASES[name]

    def fit(engine: str) -> Any:
        estimator, data = estimator_of(engine, **options), batches()
        history = estimator.fit(data, data, epochs=4, event_handlers=handlers)
        return dict(history), estimator.values(), estimator.predict(data)

    assert_engines_agree(fit)


def test_between_fits_it_freezes_what_it_does_with_mxnet() -> None:
    def fit(engine: str) -> Any:
        estimator = estimator_of(engine)
        for freeze in (estimator.unfreeze, estimator.freeze, estimator.unfreeze):
            freeze(BODY)
            before = estimator.values()
            estimator.fit(batches(), epochs=1, event_handlers=[])
            moved = {name for name, value in estimator.values().items() if (value != before.get(name)).any()}
            assert {"digit.bias", "size.bias"} <= moved
            assert any(name.startswith("body") for name in moved) == (freeze == estimator.unfreeze)
        return [estimator.values()]

    assert_engines_agree(fit)
