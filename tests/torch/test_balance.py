"""Methods of balancing on torch: equal to MXNet, in float64."""

from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import DWA, FAMO, MGDA, RLW, STCH, GradNorm, LossMethod, PCGrad, Uncertainty, UPGrad
from multifit.gluon.compat import mx
from multifit.sampling import RoundRobin, Together
from multifit.utils.seeding import seed_everything
from tests.common.compared import CASES, assert_compared, figures, fitted
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import hybridized, normed_heads
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_close, assert_engines_agree

ARRAYS = two_head_arrays(40)
BATCHES = in_batches(ARRAYS.values())
ADAM = TrainerSpec(".*", "adam", {"learning_rate": 0.02, "wd": 0.01})
SGD = {"learning_rate": 0.05, "momentum": 0.9}


def net_of(kind: str = "normed") -> Any:
    """Return a hybridized net in float64, the same one each time; `kind` "dropout" draws random numbers."""
    seed_everything(3)
    net = normed_heads(0.4 if kind == "dropout" else 0.0)
    net.cast("float64")
    return hybridized(net)


def three() -> Any:
    """A third loss on one of the two outputs, and one that counts for nothing."""
    again, idle = (LossSpec(mx.gluon.loss.L1Loss(), "size", "size", weight=weight) for weight in (0.3, 0.0))
    return two_head_spec(
        losses={"digit": CE, "size": LossSpec(L2, "size", "size"), "again": again, "idle": idle}
    )


def missing() -> Any:
    return two_head_spec(labels=[LabelSpec("digit", missing=2), LabelSpec("size", missing="nan")])


def some_missing() -> list[Any]:
    """Batches in which labels, or all labels of a task, are missing."""
    size = ARRAYS["size"].copy()
    size[:8], size[9:12] = np.nan, np.nan
    return in_batches([ARRAYS["image"], ARRAYS["digit"], size])


def several(**options: Any) -> dict[str, TrainerSpec]:
    return {
        "body": TrainerSpec("body.*", "sgd", SGD, clip_norm=0.1, **options),
        "heads": TrainerSpec("digit.*|size.*", "adam", **({} if options else {"every": 2})),
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
LOADERS = {
    "digit": in_batches([ARRAYS["image"][:24], ARRAYS["digit"][:24]]),
    "size": in_batches([ARRAYS["image"][24:], ARRAYS["size"][24:]]),
}
LACKING = {"spec": missing, "data": some_missing()}
ADDED = {"trainers": several(accumulate=True, every=3)}
# Method, and what differs: spec, data, trainers, options of the estimator.
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a user's": (Halving(), {}),
    "random": (RLW(), {}),
    "means of epochs": (DWA(), {}),
    "a second forward pass": (FAMO(), {"trainers": several()}),
    "every other batch": (Uncertainty(optimizer="sgd", every=2), {}),
    "features": (UPGrad(on="features"), {"trainers": several()}),
    "parameters": (UPGrad(every=2), {}),
    "a pattern": (GradNorm(on="body.0.weight"), {}),
    "groups": (PCGrad(tasks=PAIR), {"spec": three}),
    "missing labels, of losses": (STCH(0.5), LACKING),
    "missing labels, of parameters": (MGDA(), LACKING),
    "missing labels, of features": (
        UPGrad(on="features", preference={"digit": 2}, smooth=0.5, normalize="largest"), LACKING
    ),
    "frozen": (MGDA(on="features"), {"frozen": ["body.0.*"]}),
    "frozen, parameters": (MGDA(), {"frozen": ["body.0.*"]}),
    "loaders in turn": (DWA(), {"data": LOADERS, "sampling": RoundRobin()}),
    "loaders together": (UPGrad(), {"data": LOADERS, "spec": missing, "sampling": Together()}),
    "accumulated": (MGDA(every=2), {"accumulate": 2}),
    "accumulated, losses": (DWA(), {"accumulate": 2}),
    "accumulated by one of two trainers": (MGDA(on="features", every=2), ADDED),
    "accumulated by one of two trainers, losses": (DWA(), ADDED),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_mxnet(name: str) -> None:
    method, changes = METHODS[name]

    def run(engine: str) -> Any:
        how: dict[str, Any] = {"spec": two_head_spec, "data": BATCHES, "trainers": ADAM, **changes}
        spec, data, sampling = how.pop("spec")(), how.pop("data"), how.pop("sampling", None)
        estimator = MultiEstimator(net_of(), spec, balance=method, engine=engine, **how)
        for _ in range(2):  # fits, of which the second goes on
            history = estimator.fit(data, data, epochs=2, event_handlers=[], sampling=sampling)
        assert any(figure.startswith("train_weight_") for figure in history)
        return dict(history), estimator.values()

    assert_engines_agree(run)


@pytest.mark.parametrize("on", ["features", "parameters"])
@pytest.mark.parametrize("case", CASES)
def test_what_was_not_compared_is_nan(case: str, on: str) -> None:
    *_, on_features, on_parameters = CASES[case]
    histories = {engine: fitted(case, on, engine).history for engine in ("mxnet", "torch")}
    assert_compared(histories["torch"], on_features if on == "features" else on_parameters)
    assert_close(*map(figures, histories.values()), tolerance=1e-4)
