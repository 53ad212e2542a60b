"""load(), save() and best_checkpoint: trained parameters for use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import CheckpointHandler, MultiEstimator, SpecError, TaskSpec, TrainerSpec, WeightAveraging
from multifit.checkpoints import best_checkpoint, newest_checkpoint
from tests.common.compare import assert_unchanged, snapshot
from tests.common.handlers import handler
from tests.common.nets import hybridized, two_heads
from tests.common.specs import one_loss_spec, two_head_spec

SGD = TrainerSpec(".*", "sgd", {"learning_rate": 0.5})


def estimator() -> MultiEstimator:
    return MultiEstimator(two_heads(), two_head_spec(), SGD)


def values(net: Any) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in net._collect_params_with_prefix().items()}


def read(file: Path) -> dict[str, np.ndarray]:
    return {name: array.asnumpy() for name, array in mx.nd.load(str(file)).items()}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def scripted(**figures: Sequence[float]) -> Any:
    """Return a handler that records figures whose values the test chooses."""

    def record(estimator: Any) -> None:
        estimator.history.record({name: values[estimator.state.epoch] for name, values in figures.items()})

    return handler(epoch_end=record)


def trained(folder: Path, batches: Any, *values: float, mode: str = "max", **options: Any) -> MultiEstimator:
    """Return an estimator whose checkpoints of each epoch are in a folder, the newest two and the best."""
    made = estimator()
    saving = CheckpointHandler(folder, every=1, monitor="score", mode=mode, **options)
    made.fit(batches, epochs=len(values), event_handlers=[scripted(score=values), saving])
    return made


@pytest.mark.parametrize(
    ("mode", "scores", "best"), [("max", (1, 3, 2, 0), 2), ("min", (2, 1, 3, 1), 2), ("max", (1, 2, 3, 4), 4)]
)
def test_the_best_and_the_last(batches: Any, tmp_path: Path, mode: str, scores: Any, best: int) -> None:
    made = trained(tmp_path, batches, *scores, mode=mode)
    path = made.best_checkpoint
    assert path is not None and path.name.startswith(f"epoch-{best:04d}-")
    last = newest_checkpoint(tmp_path)[0].path
    other = estimator()
    for place in (tmp_path, tmp_path / "checkpoints"):
        assert other.load(place, which="best") == path / "net.params"
        assert_equal(values(other.net), read(path / "net.params"))
        assert other.load(str(place)) == last / "net.params"
        assert_equal(values(other.net), values(made.net))
        assert other.load(place, which=path.name) == path / "net.params"
    for which in ("last", "best", path.name):
        assert other.load(path, which=which) == path / "net.params"
    figures, expected = other.evaluate(batches), other.predict(batches)
    other.load(last)
    assert (figures == other.evaluate(batches)) == (last == path)
    other.load(path)
    assert figures == other.evaluate(batches)
    assert_equal(expected, other.predict(batches))


def test_damaged_checkpoints_are_passed_over(batches: Any, tmp_path: Path, caplog: Any) -> None:
    made = trained(tmp_path, batches, 1, 3, 2, keep_last=3)
    caplog.set_level("WARNING", "multifit")
    made.logger.propagate = True
    paths = sorted((tmp_path / "checkpoints").iterdir())
    (paths[1] / "net.params").write_bytes(b"x")
    assert made.best_checkpoint == paths[2] == made.load(tmp_path, which="best").parent
    assert f"{paths[1]}: net.params has 1 bytes" in caplog.text
    with pytest.raises(ValueError, match=r"epoch-0002-\S+ is damaged: net.params has 1 bytes"):
        made.load(tmp_path, which=paths[1].name)
    (paths[2] / "manifest.json").unlink()
    assert made.load(tmp_path).parent == paths[0]
    (paths[0] / "net.params").unlink()
    before = snapshot(made.net)
    for which in ("last", "best"):
        with pytest.raises(ValueError, match=r"(?s)intact checkpoint.*manifest.json is missing.*net.params"):
            made.load(tmp_path, which)
    assert_unchanged(made.net, before)
    assert made.best_checkpoint is None


def test_without_a_monitored_figure_there_is_no_best(batches: Any, tmp_path: Path) -> None:
    made = estimator()
    assert made.best_checkpoint is None
    made.fit(batches, epochs=1, event_handlers=CheckpointHandler(tmp_path, every=1))
    assert made.best_checkpoint is None and best_checkpoint(tmp_path) == (None, [])
    message = r"no intact checkpoint with a figure: CheckpointHandler\(folder, monitor="
    with pytest.raises(ValueError, match=message):
        made.load(tmp_path, which="best")


@pytest.mark.parametrize(
    ("initialised", "hybrid", "devices"),
    [(False, False, 1), (False, True, 2), (True, False, 2), (True, True, 1)],
)
def test_save_and_load(batches: Any, tmp_path: Path, initialised: bool, hybrid: bool, devices: int) -> None:
    made = estimator()
    made.fit(batches, epochs=1)
    file = made.save(tmp_path / "new")
    assert file == tmp_path / "new" / "final.params"
    net = hybridized(two_heads(), hybrid)
    other = MultiEstimator(net, two_head_spec(), context=[mx.cpu(i) for i in range(devices)])
    if initialised:
        other.fit(batches, epochs=1)
    state, rates = other.state.to_dict(), other.learning_rates()
    assert other.load(tmp_path / "new") == file
    assert_equal(values(other.net), values(made.net))
    assert other.state.to_dict() == state and other.learning_rates() == rates
    outputs = other.predict(batches)
    for name, expected in made.predict(batches).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5)
    other.fit(batches, epochs=1)  # from there
    two_heads().load_parameters(str(file))


def test_averages_are_what_is_used(batches: Any, tmp_path: Path) -> None:
    made = estimator()
    saving = CheckpointHandler(tmp_path, every=1)
    made.fit(batches, epochs=3, event_handlers=[saving, WeightAveraging("ema", decay=0.5)])
    folder = newest_checkpoint(tmp_path)[0].path
    other = estimator()
    other.load(tmp_path)
    assert_equal(values(other.net), read(folder / "net.params"))
    assert (folder / "trained.params").exists()


class Learned(gluon.loss.Loss):
    def __init__(self) -> None:
        super().__init__(weight=None, batch_axis=0)
        self.scale = self.params.get("scale", shape=(1,), init="ones")

    def hybrid_forward(self, F: Any, pred: Any, label: Any, scale: Any) -> Any:
        return F.broadcast_add(F.mean(F.broadcast_mul((pred - label) ** 2, scale), axis=1), -F.log(scale))


def test_losses_with_parameters(tmp_path: Path) -> None:
    random = np.random.RandomState(0)
    data = [(random.randn(4, 3).astype("float32"), random.randn(4, 1).astype("float32"))]
    made, other = (MultiEstimator(gluon.nn.Dense(1), one_loss_spec(Learned()), SGD) for _ in range(2))
    made.fit(data, epochs=2)
    made.save(tmp_path)
    other.load(tmp_path)
    assert other.evaluate(data) == made.evaluate(data)
    (tmp_path / "losses.params").unlink()
    with pytest.raises(ValueError, match=r"there is no file .*losses.params"):
        other.load(tmp_path)


def test_a_run_that_was_resumed_and_cut_off_gives_its_newest_checkpoint(batches: Any, tmp_path: Path) -> None:
    made = trained(tmp_path, batches, 1, 2)
    made.save(tmp_path)
    assert made.load(tmp_path).name == "final.params"  # no record says that it goes on
    records = {'{"seconds": null}': "net.params", '{"seconds": 3.5}': "final.params", "[": "final.params"}
    for record, name in records.items():
        (tmp_path / "settings.json").write_text(record)
        assert made.load(tmp_path).name == name


# ---- what is refused ---------------------------------------------------------------------------------------


def other_net(units: int = 3, dtype: str = "float32", more: bool = False) -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(units, in_units=4))
    if more:
        net.add(gluon.nn.Dense(units))
    net.cast(dtype)
    return net


OTHERS: dict[str, tuple[Any, str]] = {
    "a shape": (other_net(5), r'\["0.weight"\].shape: \[3, 4\] in the file, \[5, 4\] here; .*"0.bias"'),
    "a dtype": (
        other_net(3, "float64"), r'parameters\["0.weight"\].dtype: "float32" in the file, "float64" here'),
    "more": (other_net(more=True), r'parameters\["1.weight"\]: .* here, not in the file'),
    "a name": (
        gluon.nn.Dense(3, in_units=4), r'"0.weight"\]: .* in the file, not here \(did you mean "weight"\?\)'),
}  # fmt: skip


@pytest.mark.parametrize(("net", "message"), OTHERS.values(), ids=OTHERS)
def test_parameters_that_do_not_fit_are_refused(tmp_path: Path, net: Any, message: str) -> None:
    spec = TaskSpec(outputs=["x"])
    small = MultiEstimator(other_net(), spec)
    small.predict(np.ones((1, 4), "float32"))
    small.save(tmp_path)
    made = MultiEstimator(net, spec)
    with pytest.raises(SpecError, match=rf"final.params does not fit the net: .*{message}") as caught:
        made.load(tmp_path)
    assert [problem.kind for problem in caught.value.problems] == ["spec"]
    assert all(p._data is None for p in net.collect_params().values())


def test_what_is_not_there_is_named(batches: Any, tmp_path: Path) -> None:
    made = trained(tmp_path / "run", batches, 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = snapshot(made.net)
    name = next((tmp_path / "run" / "checkpoints").iterdir()).name
    for path, which, message in (
        ("rum", "last", r'rum does not exist \(did you mean "run"\?\); load takes the folder of a run'),
        ("file", "last", r"file is a file: net.load_parameters reads one; load takes the folder of a run"),
        ("empty", "last", r"empty holds neither final.params of a finished run nor an intact checkpoint$"),
        ("run", "bset", rf'is "bset" \(did you mean "best"\?\); valid for .* are "last", "best", "{name}"'),
        ("run", f"../checkpoints/{name}", r"valid for .*run are"),
        ("run", 3, "load: which is 3; valid is a string"),
    ):
        with pytest.raises(ValueError, match=message):
            made.load(tmp_path / path, which)
    assert_unchanged(made.net, before)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = MultiEstimator(other_net(), TaskSpec(outputs=["x"]))
    with pytest.raises(ValueError, match=r"file is a file; give a folder"):
        made.save(tmp_path / "file")
    with pytest.raises(ValueError, match=r"has no values yet: initialise the net, or fit or check"):
        made.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
