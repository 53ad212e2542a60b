"""Methods of balancing on torch: equal to MXNet, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    GradientAccumulation,
    GradientConflicts,
    HandlerError,
    LabelSpec,
    LossSpec,
    MixUp,
    MultiEstimator,
    SpecError,
    TrainerSpec,
)
from multifit.balance import (
    DWA,
    FAMO,
    GLS,
    IMTLG,
    IMTLL,
    MGDA,
    RLW,
    AlignedMTL,
    CAGrad,
    ConFIG,
    DualProj,
    FairGrad,
    GradNorm,
    LossMethod,
    PCGrad,
    Sum,
    Uncertainty,
    UPGrad,
)
from multifit.gluon.compat import mx
from multifit.gluon.data.seeding import seed_everything
from multifit.sampling import RoundRobin, Together
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, normed_heads, two_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_close

ARRAYS = two_head_arrays(40)
BATCHES = in_batches(ARRAYS.values())
ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
SGD = {"learning_rate": 0.05, "momentum": 0.9}


def net_of(kind: str = "normed") -> Any:
    seed_everything(3)
    net = two_heads("hybrid") if kind == "plain" else normed_heads(0.4 if kind == "dropout" else 0.0)
    net.cast("float64")
    net.hybridize()
    return net


def three() -> Any:
    """A third loss on one of the two outputs, and one that counts for nothing."""
    size = LossSpec(L2, "size", "size")
    again, idle = (LossSpec(mx.gluon.loss.L1Loss(), "size", "size", weight=weight) for weight in (0.3, 0.0))
    return two_head_spec(losses={"digit": CE, "size": size, "again": again, "idle": idle})


def missing() -> Any:
    return two_head_spec(labels=[LabelSpec("digit", missing=2), LabelSpec("size", missing="nan")])


def some_missing() -> list[Any]:
    """Batches in which labels, or all labels of a task, are missing."""
    size = ARRAYS["size"].copy()
    size[:8], size[9:12] = np.nan, np.nan
    return in_batches([ARRAYS["image"], ARRAYS["digit"], size])


def several() -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=0.1),
        "heads": TrainerSpec("digit.*|size.*", "adam", every=2),
    }


class Halving(LossMethod):
    """A user's method on the host, which reads the losses and remembers a number."""

    on_device = False

    def start(self, tasks: int) -> dict[str, Any]:
        return {"seen": 0}

    def weights(self, measured: Any, state: dict[str, Any]) -> Any:
        weights = measured.losses / measured.losses.sum() + 0.5 ** state["seen"]
        return weights, {"seen": state["seen"] + 1}

    def after_update(self, measured: Any, after: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {"seen": state["seen"] + (after.sum() > measured.losses.sum())}


PAIR = {"both": ["digit", "size"], "more": ["again"]}
METHODS: dict[str, tuple[Any, ...]] = {
    **{
        type(method).__name__: (method,)
        for method in (
            DWA(), FAMO(), GLS(), IMTLL(), RLW(), Uncertainty(), Sum(), AlignedMTL(), CAGrad(), ConFIG(),
            DualProj(), FairGrad(), GradNorm(), IMTLG(), MGDA(), PCGrad(), UPGrad(),
        )
    },
    "a user's": (Halving(),),
    "uncertainty by sgd": (Uncertainty(optimizer="sgd", every=2),),
    "every third": (UPGrad(every=3),),
    "normalised": (UPGrad(normalize=True),),
    "parameters": (UPGrad(on="parameters", every=2),),
    "a pattern": (GradNorm(on="body.0.weight"),),
    "groups": (PCGrad(tasks=PAIR), three),
    "groups of losses": (DWA(tasks=PAIR), three),
    "three losses": (UPGrad(on="parameters"), three),
    "missing labels": (UPGrad(), missing, some_missing),
    "missing labels, parameters": (MGDA(on="parameters"), missing, some_missing),
    "missing labels, losses": (Uncertainty(), missing, some_missing),
    "several trainers": (UPGrad(), two_head_spec, lambda: BATCHES, several),
    "several trainers, losses": (FAMO(), two_head_spec, lambda: BATCHES, several),
}  # fmt: skip


DEFAULTS: Any = (two_head_spec, lambda: BATCHES, lambda: ADAM)


def fit(engine: str, method: Any, spec: Any, data: Any, trainers: Any = None, **options: Any) -> Any:
    estimator = MultiEstimator(net_of(), spec, trainers or ADAM, balance=method, engine=engine)
    options = {"epochs": 3, "event_handlers": [], **options}
    history = estimator.fit(data, data, **options)
    return dict(history), values(estimator)


def values(estimator: MultiEstimator) -> dict[str, np.ndarray]:
    return {name: parameter.data().asnumpy() for name, parameter in estimator.parameters.items()}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_mxnet(name: str) -> None:
    """Parameters, and figures: weights, norms, cosines and conflicts are among them."""
    method, *parts = METHODS[name]
    make_spec, make_data, make_trainers = [*parts, *DEFAULTS[len(parts) :]]
    (history, moved), other = (
        fit(engine, method, make_spec(), make_data(), make_trainers()) for engine in ("mxnet", "torch")
    )
    assert any(figure.startswith("train_weight_") for figure in history)
    assert_close(history, other[0])
    assert_close(moved, other[1])


@pytest.mark.parametrize("method", [DWA(), UPGrad(on="parameters")], ids=lambda m: type(m).__name__)
def test_loaders_are_balanced_as_with_mxnet(method: Any) -> None:
    loaders = {
        "digit": in_batches([ARRAYS["image"][:24], ARRAYS["digit"][:24]]),
        "size": in_batches([ARRAYS["image"][24:], ARRAYS["size"][24:]]),
    }
    joined = isinstance(method, UPGrad)
    sampling, spec = (Together(), missing()) if joined else (RoundRobin(), two_head_spec())
    of_mxnet, of_torch = (
        fit(engine, method, spec, loaders, sampling=sampling) for engine in ("mxnet", "torch")
    )
    for one, other in zip(of_mxnet, of_torch):
        assert_close(one, other)


@pytest.mark.parametrize("on", ["features", "parameters", "body.*weight"])
def test_conflicts_are_those_of_mxnet_and_change_nothing(on: str) -> None:
    def trained(engine: str, *handlers: Any) -> Any:
        return fit(engine, None, three(), BATCHES, event_handlers=list(handlers))

    of_mxnet, of_torch = (trained(engine, GradientConflicts(every=2, on=on)) for engine in ("mxnet", "torch"))
    assert "train_conflict" in of_mxnet[0]
    for one, other in zip(of_mxnet, of_torch):
        assert_close(one, other)
    np.testing.assert_equal(of_torch[1], trained("torch")[1])


@pytest.mark.parametrize(
    "method", [FAMO(), Uncertainty(), RLW(), UPGrad(on="parameters"), GradNorm(every=3)],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
@pytest.mark.parametrize("first", ["torch", "mxnet"])
def test_a_run_resumes_on_either_engine(first: str, method: Any, tmp_path: Path) -> None:
    """On torch bit for bit, with Dropout; from MXNet to tolerance, without."""
    kind = "dropout" if first == "torch" else "normed"

    def run(folder: str, engine: str = "torch", **options: Any) -> Any:
        estimator = MultiEstimator(net_of(kind), two_head_spec(), ADAM, balance=method, engine=engine)
        saving = CheckpointHandler(tmp_path / folder, Every(1, "batch"), seed=7)
        measuring = [] if method.needs == "gramian" else [GradientConflicts(3)]
        history = estimator.fit(BATCHES, event_handlers=[saving, *measuring], **options)
        return dict(history), values(estimator)

    whole = run("whole", batches=12)
    run("parts", first, batches=7)
    resumed = run("parts", batches=12, resume=tmp_path / "parts")
    for one, other in zip(whole, resumed):
        assert_close(one, other)
        if first == "torch":
            np.testing.assert_equal(other, one)


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

    for one, other in zip(fit("mxnet"), fit("torch")):
        assert_close(one, other)


class CutsPower:
    """Ends a fit after the checkpoint of 7 batches."""

    def batch_end(self, estimator: Any) -> None:
        if estimator.state.step == 8:
            raise RuntimeError


@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize("engines", ["torch torch", "torch mxnet", "mxnet torch"])
def test_a_run_resumes_amid_the_batches_of_an_update(engines: str, how: str, tmp_path: Path) -> None:
    """Bit for bit on torch."""

    def run(folder: str, engine: str, *further: Any, **options: Any) -> Any:
        make_trainers, make_handlers = ADDED[how]
        method = UPGrad(on="parameters")
        estimator = MultiEstimator(net_of(), two_head_spec(), make_trainers(), balance=method, engine=engine)
        handlers = [CheckpointHandler(tmp_path / folder, Every(7, "batch")), *make_handlers(), *further]
        return dict(estimator.fit(BATCHES, epochs=3, event_handlers=handlers, **options)), values(estimator)

    first, second = engines.split()
    whole = run("whole", "torch")
    with pytest.raises(HandlerError):
        run("parts", first, CutsPower())
    resumed = run("parts", second, resume=tmp_path / "parts")
    for one, other in zip(whole, resumed):
        assert_close(one, other)
        if first == second:
            np.testing.assert_equal(other, one)


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


@pytest.mark.parametrize("method", [DWA(), UPGrad()], ids=["losses", "gradients"])
def test_handlers_that_blend_losses_are_refused(method: Any) -> None:
    with pytest.raises(SpecError, match="balance: MixUp replaces a share of losses by others"):
        fit("torch", method, two_head_spec(), BATCHES, event_handlers=[MixUp()])


@pytest.mark.parametrize("method", [DWA(), UPGrad(), UPGrad(on="parameters")], ids=["losses", "cut", "rows"])
def test_in_bfloat16(method: Any) -> None:
    """The casts of the net are in both parts of a graph that is cut."""

    def fit(precision: str) -> tuple[float, str]:
        options: Any = {"balance": method, "precision": precision, "engine": "torch"}
        estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), ADAM, **options)
        estimator.net.initialize(mx.init.Constant(0.1))
        estimator.check(BATCHES)
        history = estimator.fit(BATCHES, epochs=2, event_handlers=[])
        program = next(iter(estimator._runner._stages["train"]._programs.values()))
        parts = [program] if program.parting is None else [program._body, program._rest]
        assert all(("bfloat16" in part.module.code) == (precision == "bfloat16") for part in parts)
        return history["train_loss"][-1]

    assert fit("bfloat16") == pytest.approx(fit("float32"), rel=0.02)


@pytest.mark.parametrize(
    "method",
    [IMTLL(), UPGrad(), GradNorm(on="body.*"), UPGrad(on="parameters")],
    ids=lambda m: type(m).__name__,
)
def test_float16_weighs_as_float32_does(method: Any) -> None:
    """Gradients at which tasks part are scaled; some would vanish in float16 as they are."""

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
    """As float16 is too small for the first scale; figures are those of the other batches."""
    options: Any = {"balance": UPGrad(), "precision": "float16", "engine": "torch"}
    estimator = MultiEstimator(two_heads("hybridized"), two_head_spec(), ADAM, **options)
    estimator._runner.load({**estimator._runner.state(), "scale": 2.0**24})
    history = estimator.fit(BATCHES, epochs=4, event_handlers=[])
    assert estimator._runner.state()["scale"] < 2.0**24
    assert (
        np.isfinite(history["train_gradnorm_digit"][-1]) and np.isfinite(history["train_weight_digit"]).all()
    )
    assert history["train_loss"][-1] < history["train_loss"][0]
