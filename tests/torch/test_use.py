"""Using what was trained, with torch as engine: load, activations, predictions in files, runs in folders."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import CheckpointHandler, MultiEstimator, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import Heads, hybridized
from tests.common.specs import two_head_spec

BATCHES = in_batches(two_head_arrays().values())


def make(engine: str = "torch") -> MultiEstimator:
    net = hybridized(Heads(digit=3, size=1))
    context = "cpu" if engine == "torch" else mx.cpu()
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.2})
    return MultiEstimator(net, two_head_spec(), trainer, context=context, engine=engine)


@pytest.mark.parametrize(("trains", "uses"), [("torch", "torch"), ("torch", "mxnet"), ("mxnet", "torch")])
def test_what_one_engine_trains_another_uses(tmp_path: Path, trains: str, uses: str) -> None:
    folder, made = tmp_path / "run", make(trains)
    saving = CheckpointHandler(folder, every=1, monitor="val_loss")
    made.fit(BATCHES, BATCHES, epochs=3, event_handlers=saving, output=folder, seed=1)
    record = json.loads((folder / "settings.json").read_text())
    assert record["engine"] == trains and "torch" in record["versions"]
    other = make(uses)
    other.predict(BATCHES)  # which has taken the values that load replaces
    assert made.best_checkpoint is not None
    for which in ("best", "last"):
        other.load(folder, which)
        expected, figures = made.predict(BATCHES), made.evaluate(BATCHES, event_handlers=[])
        assert other.evaluate(BATCHES, event_handlers=[]) == pytest.approx(figures, rel=1e-5)
        outputs = other.predict(BATCHES, activation={"digit": "softmax"}, output=tmp_path / which)
        np.testing.assert_allclose(outputs["size"], expected["size"], rtol=1e-5, atol=1e-6)
        powers = np.exp(expected["digit"])
        np.testing.assert_allclose(outputs["digit"], powers / powers.sum(1, keepdims=True), rtol=1e-5)
    assert sorted(os.listdir(tmp_path / "last")) == ["digit.npy", "size.npy"]
    other.fit(BATCHES, epochs=1)
    assert other.evaluate(BATCHES, event_handlers=[])["loss"] < figures["loss"]


def test_two_fits_with_a_seed_are_equal() -> None:
    def run(seed: int) -> Any:
        made = make()
        history = made.fit(BATCHES, epochs=2, seed=seed)
        return dict(history), {name: each.tobytes() for name, each in made.values().items()}

    assert run(1) == run(1) != run(2)
