"""What is frozen and unfrozen within a fit, and frozen BatchNorm layers: the same with both engines."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.torch.cuda_graphs import counted_replays

from multifit import Freeze, LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import MGDA
from multifit.gluon.compat import mx
from multifit.seeding import seed_everything
from tests.common.handlers import Freezes
from tests.common.nets import TWO_HEADS, Heads, PlainHeads, normed_heads, sequential
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree, batches, run
from tests.torch.runs import BATCHES, assert_equal, assert_resumes, estimator_of, values

BODY = r"body.*"
FREEZES = {0: BODY, 5: "", 8: r"digit.*|body\.0\..*", 12: BODY, 17: ""}


class Recorded(PlainHeads):
    """A net that torch records, as no symbol runs through it."""

    def __init__(self) -> None:
        body = sequential(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.BatchNorm())
        super().__init__(body=body, **TWO_HEADS)

    def forward(self, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


@dataclass
class Case:
    net: Callable[[], Any] = lambda: normed_heads(dropout=0.0)
    trainers: Any = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
    losses: dict[str, Any] = field(default_factory=lambda: {"digit": CE, "size": L2})
    freezes: dict[int, str] = field(default_factory=lambda: FREEZES)
    options: dict[str, Any] = field(default_factory=dict)


def data_norm() -> Any:
    norm = mx.gluon.nn.BatchNorm(scale=False, center=False)
    return sequential(norm, mx.gluon.nn.Dense(8, activation="relu"))


TWO = {"body": TrainerSpec("body.*", "sgd"), "heads": TrainerSpec("(digit|size).*", "adam")}
CASES = {
    "handlers": Case(),
    "recorded": Case(net=Recorded),
    "accumulated": Case(trainers=TrainerSpec(".*", "adam", every=3, accumulate=True)),
    "statistics of the data, which nothing learns": Case(
        net=lambda: Heads(body=data_norm(), **TWO_HEADS), freezes={}
    ),
    "by name": Case(freezes={}, options={"frozen": [BODY]}),
    "statistics alone": Case(freezes={}, options={"frozen": [".*running.*"]}),
    "balanced": Case(freezes={4: r"body\.0\.bias", 9: ""}, options={"balance": MGDA()}),
    "balanced by parameters": Case(
        freezes={4: r"body\.1.*", 9: ""}, options={"balance": MGDA(on="parameters")}
    ),
    "bound": Case(
        trainers=TWO,
        losses={"digit": CE, "size": LossSpec(L2, "size", "size", trainers="heads")},
        freezes={3: BODY, 7: "", 11: "(digit|size).*"},
    ),
}


def made(case: Case) -> tuple[Any, ...]:
    seed_everything(3)
    net = case.net()
    net.cast("float64")
    net.hybridize()
    spec = two_head_spec(losses=case.losses, labels=["digit", "size", "weight"], unused=["weight"])
    return net, spec, case.trainers, batches()


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_mxnet(name: str) -> None:
    case = CASES[name]
    handlers = [Freezes(case.freezes)]
    assert_engines_agree(lambda engine: run(engine, *made(case), handlers=handlers, **case.options))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("how", [{"until": 2}, {"until": 6, "unit": "batch"}], ids=str)
@pytest.mark.parametrize("net", ["handlers", "recorded", "statistics of the data, which nothing learns"])
def test_freeze_does_what_it_does_with_mxnet(net: str, how: dict[str, Any], accumulate: int) -> None:
    def fit(engine: str) -> Any:
        return run(engine, *made(CASES[net]), handlers=[Freeze(BODY, **how)], accumulate=accumulate)

    assert_engines_agree(fit)


def test_between_fits_it_freezes_what_it_does_with_mxnet() -> None:
    def fit(engine: str) -> Any:
        net, spec, trainer, data = made(Case())
        estimator = MultiEstimator(
            net, spec, trainer, context="cpu" if engine == "torch" else None, engine=engine
        )
        for freeze in (estimator.unfreeze, estimator.freeze, estimator.unfreeze):
            freeze(BODY)
            estimator.fit(data, epochs=1, event_handlers=[])
        return [estimator.values()]

    assert_engines_agree(fit)


@pytest.mark.parametrize(("stop", "until", "accumulate"), [(3, 5, 1), (7, 5, 1), (3, 2, 2)])
def test_a_fit_with_freeze_resumes(stop: int, until: int, accumulate: int, tmp_path: Path) -> None:
    """Also within a window of what learns again."""
    make = partial(estimator_of, "float64", trainers=TrainerSpec(".*", "adamw"), accumulate=accumulate)
    freeze = partial(Freeze, BODY, until, "batch")
    assert_resumes(make, tmp_path, ("mxnet", "torch"), stop, handlers=lambda: [freeze()])


class SlowsDown:
    """Lowers the rate of a layer after the first batch."""

    def batch_end(self, estimator: Any, **arguments: Any) -> None:
        if estimator.state.step == 1:
            estimator.parameters["size.weight"].lr_mult = 0.1


@pytest.mark.parametrize(
    ("first", "stop", "accumulate"), [("torch", 2, True), ("torch", 7, False), ("mxnet", 4, True)]
)
def test_it_resumes(first: str, stop: int, accumulate: bool, tmp_path: Path) -> None:
    trainer = TrainerSpec(".*", "adam", every=3, accumulate=True) if accumulate else TrainerSpec(".*", "adam")
    freezes = {0: "body.*", 3: "", 6: "digit.*"}
    handlers: Any = lambda: [Freezes(freezes), SlowsDown()]  # noqa: E731
    make = partial(estimator_of, "float64", trainers=trainer)
    assert_resumes(make, tmp_path, (first, "torch"), stop, handlers=handlers)


def test_cuda_graphs_of_what_was_trained_before_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(**options: Any) -> Any:
        estimator = estimator_of(**options)
        handlers = [Freezes({4: "body.*", 9: ""})]
        history = estimator.fit(BATCHES, BATCHES, epochs=6, event_handlers=handlers)
        return dict(history), values(estimator)

    expected, replays = fit(compile=False), counted_replays(monkeypatch)
    for one, other in zip(expected, fit(compile="cudagraphs")):
        assert_equal(one, other, tolerance=1e-6)
    assert replays.count
