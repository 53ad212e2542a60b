"""Handlers that read or set the net, or the states of its trainers, while torch holds the values."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from multifit import Interpretation, LabelSpec, TrainerSpec
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import BATCHES, assert_equal, estimator_of, values

MOMENTUM = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
SEVERAL = {
    "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}),
    "heads": TrainerSpec("digit.*|size.*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
}
MOMENTA = [(0.0, 0.9, 0.9, 0.9, 0.9), (0.5, 0.5, 0.0, 0.9, 0.9), (0.0, 0.5, 0.0, 0.0, 0.9)]  # by batch


@pytest.mark.parametrize(("optimizer", "momenta"), [*zip(["sgd", "nag"], MOMENTA)], ids=str)
def test_momentum_that_is_raised_from_0_begins_anew(optimizer: str, momenta: tuple[float, ...]) -> None:
    class Change:
        def batch_begin(self, estimator: Any) -> None:
            estimator.trainers["trainer"].momentum = momenta[estimator.state.step % 5]
            estimator.trainers["trainer"].learning_rate = 0.05

    def fit(engine: str) -> Any:
        options = {"learning_rate": 0.1, "momentum": 0.0}
        estimator = estimator_of("float64", engine, trainers=TrainerSpec(".*", optimizer, options))
        estimator.fit(BATCHES, epochs=2, event_handlers=[Change()])
        return [values(estimator)]

    assert_engines_agree(fit)


@pytest.mark.parametrize("event", ["batch_begin", "epoch_end", "change_objective"])
def test_states_that_a_handler_saves_and_loads(event: str, tmp_path: Path) -> None:
    def fit(engine: str) -> Any:
        calls: list[int] = []

        def act(estimator: Any, **_: Any) -> None:
            calls.append(len(calls))
            for name, trainer in estimator.trainers.items():
                file = str(tmp_path / f"{engine}-{name}")
                if len(calls) == 1:
                    trainer.save_states(file)
                elif len(calls) == 2:
                    trainer.load_states(file)

        def read(estimator: Any) -> None:
            estimator.parameters["digit.bias"].data().asnumpy()

        acts = type("Act", (), {event: staticmethod(act)})()
        reads = type("Read", (), {"hold_update": staticmethod(read)})()
        estimator = estimator_of("float64", engine, trainers=SEVERAL)
        estimator.fit(BATCHES, epochs=3, event_handlers=[acts, reads])
        assert len(calls) > 2
        return [values(estimator)]

    assert_engines_agree(fit)


def test_a_handler_exports_current_values(tmp_path: Path) -> None:
    image = BATCHES[0][0]

    class Export:
        def batch_end(self, estimator: Any) -> None:
            folder = tmp_path / str(estimator.state.step)
            estimator.export(folder, format="torch")
            exported = runpy.run_path(str(folder / "net.py"))["load"]()(torch.from_numpy(image))
            found = {name: value.detach().numpy() for name, value in exported.items()}
            assert_equal(found, estimator.predict(image), 1e-6)

    estimator_of().fit(BATCHES, epochs=1, event_handlers=[Export()])
    assert len(list(tmp_path.iterdir())) == 5


def test_confusions_and_pairs_are_those_of_mxnet() -> None:
    spec = two_head_spec(labels=[LabelSpec("digit", missing=1), "size"])

    def interpret(engine: str) -> Any:
        found = Interpretation()
        estimator_of("float64", engine, spec=spec).evaluate(BATCHES, event_handlers=[found])
        assert 0 < found.confusion["digit"].sum() < sum(len(batch[0]) for batch in BATCHES)
        assert found.confusion["digit"][1].sum() == 0
        return [found.confusion, found.scatter]

    assert_engines_agree(interpret)
