"""Methods of balancing on torch: equal to MXNet, in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import DWA, FAMO, MGDA, STCH, GradNorm, LossMethod, PCGrad, Uncertainty, UPGrad
from multifit.distributed import World
from multifit.gluon.compat import mx
from multifit.sampling import RoundRobin, Together
from multifit.utils.seeding import seed_everything
from tests.common.balance_methods import methods
from tests.common.compared import CASES, assert_compared, figures, fitted
from tests.common.data import in_batches, two_head_arrays
from tests.common.joint_training import assert_as_alone
from tests.common.nets import normed_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_close, assert_engines_agree

ARRAYS = two_head_arrays(40)
BATCHES = in_batches(ARRAYS.values())
ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
SGD = {"learning_rate": 0.05, "momentum": 0.9}


def net_of(kind: str = "normed") -> Any:
    seed_everything(3)
    net = normed_heads(0.4 if kind == "dropout" else 0.0)
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
    **{name: (method,) for name, method in methods().items()},
    "a user's": (Halving(),),
    "uncertainty by sgd": (Uncertainty(optimizer="sgd", every=2),),
    "every third": (UPGrad(every=3),),
    "parameters": (UPGrad(on="parameters", every=2),),
    "a pattern": (GradNorm(on="body.0.weight"),),
    "groups": (PCGrad(tasks=PAIR), three),
    "missing labels": (UPGrad(), missing, some_missing),
    "missing labels, parameters": (MGDA(on="parameters"), missing, some_missing),
    "missing labels, losses": (Uncertainty(), missing, some_missing),
    "missing labels, STCH": (STCH(0.5), missing, some_missing),
    "missing labels, preferred": (
        UPGrad(preference={"digit": 2}, smooth=0.5, normalize="largest"), missing, some_missing
    ),
    "several trainers": (UPGrad(), two_head_spec, lambda: BATCHES, several),
    "several trainers, losses": (FAMO(), two_head_spec, lambda: BATCHES, several),
}  # fmt: skip

DEFAULTS: Any = (two_head_spec, lambda: BATCHES, lambda: ADAM)


def fit(engine: str, method: Any, spec: Any, data: Any, trainers: Any = None, **options: Any) -> Any:
    estimator = MultiEstimator(net_of(), spec, trainers or ADAM, balance=method, engine=engine)
    options = {"epochs": 3, "event_handlers": [], **options}
    history = estimator.fit(data, data, **options)
    return dict(history), estimator.values()


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_mxnet(name: str) -> None:
    method, *parts = METHODS[name]
    make_spec, make_data, make_trainers = [*parts, *DEFAULTS[len(parts) :]]

    def run(engine: str) -> Any:
        history, moved = fit(engine, method, make_spec(), make_data(), make_trainers())
        assert any(figure.startswith("train_weight_") for figure in history)
        return history, moved

    assert_engines_agree(run)


@pytest.mark.parametrize("on", ["features", "parameters"])
def test_frozen_parameters_are_not_compared_with_either(on: str) -> None:
    def run(engine: str) -> Any:
        options: dict[str, Any] = {"frozen": ["body.0.*"], "balance": MGDA(on=on), "engine": engine}
        estimator = MultiEstimator(net_of(), two_head_spec(), ADAM, **options)
        return dict(estimator.fit(BATCHES, epochs=2, event_handlers=[])), estimator.values()

    assert_engines_agree(run)


@pytest.mark.parametrize("method", [DWA(), UPGrad(on="parameters")], ids=lambda m: type(m).__name__)
def test_loaders_are_balanced_as_with_mxnet(method: Any) -> None:
    loaders = {
        "digit": in_batches([ARRAYS["image"][:24], ARRAYS["digit"][:24]]),
        "size": in_batches([ARRAYS["image"][24:], ARRAYS["size"][24:]]),
    }
    joined = isinstance(method, UPGrad)
    sampling, spec = (Together(), missing()) if joined else (RoundRobin(), two_head_spec())
    assert_engines_agree(lambda engine: fit(engine, method, spec, loaders, sampling=sampling))


# ---- gradients that add up over batches --------------------------------------------------------------------

ADDED: dict[str, Callable[[], dict[str, Any]]] = {
    "by all trainers": lambda: {"trainers": ADAM, "accumulate": 2},
    "by one of two trainers": lambda: {
        "trainers": {
            "body": TrainerSpec("body.*", "sgd", SGD, every=3, accumulate=True, clip_norm=0.2),
            "heads": TrainerSpec("digit.*|size.*", "adam"),
        }
    },
}


@pytest.mark.parametrize("how", ADDED)
@pytest.mark.parametrize(
    "method",
    [MGDA(every=2), MGDA(on="parameters", every=2), GradNorm(), DWA()],
    ids=["MGDA", "MGDA of parameters", "GradNorm", "DWA"],
)
def test_gradients_that_add_up_are_weighed_as_with_mxnet(how: str, method: Any) -> None:
    def fit(engine: str) -> Any:
        estimator = MultiEstimator(net_of(), two_head_spec(), balance=method, engine=engine, **ADDED[how]())
        for _ in range(2):
            history = estimator.fit(BATCHES, epochs=1, event_handlers=[])
        return dict(history), estimator.values()

    assert_engines_agree(fit)


# ---- tasks that are not compared ---------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_not_compared_is_nan(case: str, on: str) -> None:
    *_, on_features, on_parameters = CASES[case]
    histories = {engine: fitted(case, on, engine).history for engine in ("mxnet", "torch")}
    assert_compared(histories["torch"], on_features if on == "features" else on_parameters)
    assert_close(*map(figures, histories.values()), tolerance=1e-4)


def test_ranks_compare_what_one_process_does() -> None:
    def train(world: World) -> dict[str, Any]:
        return figures(fitted("labels that meet in one half", "features", "torch", world=world).history)

    assert_as_alone(train)


def test_tasks_that_never_meet_in_an_epoch_are_named_once(caplog: Any) -> None:
    fitted("labels that never meet in a sample", "features", "torch")
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert 'in a whole epoch those of "digit" and "parity" never met' in warning
