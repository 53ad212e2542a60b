"""Gradients that several batches add up, and values that handlers set: as with MXNet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from multifit import CheckpointHandler, Every, MultiEstimator, StoppingHandler, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.accumulating import (
    CASES,
    assert_is_one_batch,
    batches_of,
    net_of,
    spec_of,
    trained,
    values_of,
)
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import BATCHES, PAIRS, assert_resumes, estimator_of, values
from tests.torch.test_engine import assert_close
from tests.torch.test_step_handlers import SkipThird

SGD = {"learning_rate": 0.05, "momentum": 0.9, "wd": 0.01}


def rhythms() -> Any:
    """Return trainers of which one updates after every batch, and others wait, with and without adding up."""
    return {
        "body": TrainerSpec("body.*", "sgd", dict(SGD), every=3, accumulate=True, clip_norm=0.2),
        "digit": TrainerSpec("digit.*", "adam", {"learning_rate": 0.02}, every=2),
        "size": TrainerSpec("size.*", "sgd", dict(SGD)),
    }


@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_one_batch(case: str) -> None:
    window = 3 if case == "all of it" else 5  # all batches, or more than an epoch has
    assert_is_one_batch(case, window, engine="torch", context="cpu")


@pytest.mark.parametrize("options", [{"epochs": 1}, {"batches": 3}], ids=["a handler", "a limit"])
def test_a_stop_within_a_window_updates_with_what_is_there(options: Any) -> None:
    stop = StoppingHandler(condition=lambda state: state.step == 3)
    trainers = TrainerSpec(".*", "sgd", {**SGD, "learning_rate": 0.1})
    estimator = MultiEstimator(net_of(), spec_of(), trainers, engine="torch", accumulate=2)
    estimator.fit(batches_of((3, 2, 3, 2, 4)), event_handlers=[stop], **options)
    whole, _ = trained((5, 3), epochs=1, trainers=trainers, engine="torch")
    assert_close(whole, values_of(estimator), tolerance=1e-12)


def test_a_run_resumes_within_a_window_of_pytorchs_loader(tmp_path: Path) -> None:
    (arrays,) = batches_of([14], True)

    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(arrays[0])

        def __getitem__(self, place: int) -> Any:
            x, *labels = (array[place] for array in arrays)
            return x + 0.1 * torch.randn(x.shape).double().numpy(), *labels

    def run(folder: Path, *handlers: Any, **fit: Any) -> MultiEstimator:
        trainers = TrainerSpec(".*", "sgd", SGD)
        estimator = MultiEstimator(net_of(), spec_of(True, True), trainers, engine="torch", accumulate=3)
        data = torch.utils.data.DataLoader(Noisy(), 3, shuffle=True)
        saving = CheckpointHandler(folder, Every(1, "batch"), seed=1)
        estimator.fit(data, epochs=2, event_handlers=[saving, *handlers], **fit)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 1, 3, 4, 7)


def add_all(estimator: Any) -> None:
    for parameter in estimator.net.collect_params().values():
        parameter.grad_req = "add"


class Clip:
    """Keeps values small after each batch, as WGAN does."""

    def batch_end(self, estimator: Any) -> None:
        for parameter in estimator.parameters.values():
            parameter.set_data(mx.nd.clip(parameter.data(), -0.3, 0.3))


class ClipAfterEpoch:
    epoch_end = Clip.batch_end


class Around:
    """Trains on halved values, and doubles what comes of it."""

    @contextmanager
    def around_step(self, estimator: Any) -> Iterator[None]:
        self._scale(estimator, 0.5)
        yield
        self._scale(estimator, 2.0)

    def _scale(self, estimator: Any, factor: float) -> None:
        for parameter in estimator.parameters.values():
            parameter.set_data(parameter.data() * factor)


class Decay:
    """Adds a part of the values to the gradients, and reads the values in other hooks too."""

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        return bool(estimator.parameters["body.weight"].data().asnumpy()[0, 0] > 100)

    def change_gradients(self, estimator: Any) -> None:
        for name, (gradient,) in estimator.gradients()["trainer"].items():
            gradient += 0.1 * estimator.parameters[name].data()
            if name == "size.bias":
                estimator.parameters[name].set_data(estimator.parameters[name].data() * 0.9)


RUNS: dict[str, dict[str, Any]] = {
    "rhythms": {"trainers": rhythms},
    "added up by hand": {"prepare": add_all},
    "added up while held": {"prepare": add_all, "handlers": lambda: [SkipThird()]},
    "written while held": {"handlers": lambda: [SkipThird()]},
    "values set after a batch": {"handlers": lambda: [Clip()]},
    "values set after an epoch": {"handlers": lambda: [ClipAfterEpoch()]},
    "values set around a step": {"handlers": lambda: [Around()]},
    "values read and set in hooks": {"handlers": lambda: [Decay()]},
}


@pytest.mark.parametrize("name", RUNS)
def test_figures_and_parameters_are_those_of_mxnet(name: str) -> None:
    def fit(engine: str) -> Any:
        options = dict(RUNS[name])
        prepare: Callable[[Any], None] = options.pop("prepare", lambda estimator: None)
        handlers = options.pop("handlers", list)
        estimator = estimator_of("float64", engine, **{key: make() for key, make in options.items()})
        prepare(estimator)
        histories = [
            dict(estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=handlers())) for _ in range(2)
        ]
        return *histories, values(estimator), estimator.predict(BATCHES)

    assert_engines_agree(fit)


@pytest.mark.parametrize(("engines", "stop"), [*zip(PAIRS, (5, 4, 4))])
def test_a_run_resumes_between_two_updates(engines: tuple[str, str], stop: int, tmp_path: Path) -> None:
    def make(engine: str) -> MultiEstimator:
        return estimator_of("float64", engine, trainers=rhythms())

    assert_resumes(make, tmp_path, engines, stop)


def test_handlers_see_the_gradients_of_the_trainers_that_move() -> None:
    def seen(engine: str) -> list[Any]:
        kinds = []

        class Look:
            def change_gradients(self, estimator: Any) -> None:
                gradients = estimator.gradients()
                kinds.append(
                    {name: {k: g.asnumpy() for k, (g,) in of.items()} for name, of in gradients.items()}
                )

        estimator = estimator_of("float64", engine, trainers=rhythms())
        estimator.fit(BATCHES, epochs=2, event_handlers=[Look()])
        return kinds

    for one, other in zip(seen("mxnet"), seen("torch")):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])


def test_values_that_a_handler_sets_count_for_predictions_at_once() -> None:
    class Zero:
        def batch_end(self, estimator: Any) -> None:
            for parameter in estimator.parameters.values():
                parameter.set_data(mx.nd.zeros_like(parameter.data()))
            assert not estimator.predict(BATCHES[0])["digit"].any()
            estimator.parameters["body.bias"].set_data(mx.nd.ones((8,)))
            estimator.parameters["digit.weight"].set_data(mx.nd.ones((3, 8)))
            assert (estimator.predict(BATCHES[0])["digit"] == 8).all()

    estimator_of().fit(BATCHES, batches=2, event_handlers=[Zero()])
