"""Figures with a loader for each task; what plan, progress bars and commands show of the loaders."""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, ProgressBar, TrainerSpec
from multifit.cli import main
from multifit.sampling import Proportional, Ratios, Together
from tests.cli.conftest import TASK
from tests.cli.test_tasks import SHARED
from tests.common.compare import snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import two_settings
from tests.common.hand_loop import LoggingHandler
from tests.common.handlers import handler
from tests.common.nets import hybridized, two_heads
from tests.common.ranks import run_ranks
from tests.common.specs import CE, L2, two_head_spec

from .runs import estimator_of, fit, parts, whole

import mxnet as mx  # isort: skip


@two_settings
def test_figures_are_over_the_samples_that_have_labels(devices: Any, hybrid: bool) -> None:
    data = parts()
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
        "own": MetricSpec(lambda labels, outputs: abs(labels - outputs).mean(), "size", "size", mode="min"),
        "of loss": MetricSpec(mx.metric.Loss(), losses="size"),
    }
    spec = two_head_spec(losses={"digit": CE, "size": LossSpec(L2, weight=3)}, metrics=metrics)
    frozen = TrainerSpec(".*", "sgd", {"learning_rate": 0.0})
    net = hybridized(two_heads("hybrid"), hybrid)
    estimator = estimator_of(net, spec, trainers=frozen, context=devices)
    history = fit(estimator, data, data, epochs=2, sampling=Ratios(digit=1, size=2))
    (digits, digit), (sizes, size) = whole(data).values()
    outputs = {"digit": estimator.predict(digits)["digit"], "size": estimator.predict(sizes)["size"]}
    error = abs(outputs["size"] - size).mean()
    expected = {
        "digit": CE(mx.nd.array(outputs["digit"]), mx.nd.array(digit)).mean().asscalar(),
        "size": ((outputs["size"] - size) ** 2).mean() / 2,
        "accuracy": (outputs["digit"].argmax(axis=1) == digit).mean(),
        "error": error, "own": error,
    }  # fmt: skip
    expected["loss"] = expected["digit"] + 3 * expected["size"]
    for name, value in expected.items():
        assert history[f"val_{name}"] == pytest.approx([value] * 2, rel=1e-5), name
    for stage in ("train", "val"):
        assert history[f"{stage}_of loss"] == pytest.approx(history[f"{stage}_size"], rel=1e-5)
    counts = {name: history[name] for name in history if "batches_" in name or "passes_" in name}
    assert counts == {
        "train_batches_digit": [2.0, 2.0],
        "train_batches_size": [5.0, 5.0],
        "train_passes_digit": [pytest.approx(2 / 3)] * 2,
        "train_passes_size": [1.25, 1.25],
    }


class Range(mx.metric.EvalMetric):
    """Two figures, whose names are known once something was measured."""

    def __init__(self) -> None:
        super().__init__("range")

    def reset(self) -> None:
        self.seen: list[float] = []

    def update(self, labels: Any, preds: Any) -> None:
        for label in labels:
            self.seen += label.asnumpy().ravel().tolist()

    def get(self) -> Any:
        return ["low", "high"], [min(self.seen), max(self.seen)]


OF_DIGIT, OF_SIZE = {"digit", "accuracy", "top"}, {"size", "error", "range.low", "range.high"}


def measured(figures: Any) -> set[str]:
    names = {name.split("_", 1)[1] for name in figures}
    assert names >= OF_DIGIT | OF_SIZE
    finite = {name.split("_", 1)[1] for name, value in figures.items() if math.isfinite(value)}
    return finite & (OF_DIGIT | OF_SIZE)


@two_settings
def test_what_no_batch_had_yet_is_not_measured(devices: Any, hybrid: bool) -> None:
    """Neither in an epoch that ends before, nor where a handler reads figures after the first batches."""
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "top": MetricSpec(mx.metric.TopKAccuracy(2), "digit", "digit"),
        "error": MetricSpec(mx.metric.MAE(), "size", "size"),
        "range": MetricSpec(Range(), "size", "size", mode="max"),
    }
    seen: dict[str, list[set[str]]] = {"train": [], "evaluate": []}

    def read(stage: str) -> Any:
        return lambda estimator: seen[stage].append(measured(estimator.figures(stage)))

    watch = handler("Watch", batch_end=read("train"), evaluate_batch_end=read("evaluate"))
    net = hybridized(two_heads("hybrid"), hybrid)
    estimator = estimator_of(net, two_head_spec(metrics=metrics), context=devices)
    history = fit(estimator, parts(16, 16), parts(16, 16), watch, batches=5)
    both = OF_DIGIT | OF_SIZE
    assert seen["train"] == [OF_DIGIT, both, both, both, OF_DIGIT]
    assert seen["evaluate"] == [OF_DIGIT, OF_DIGIT, both, both] * 2
    assert measured({name: v[1] for name, v in history.items() if name.startswith("train")}) == OF_DIGIT


def test_what_validation_data_lacks_is_not_measured() -> None:
    data, estimator = parts(), estimator_of()
    history = fit(estimator, data, {"size": data["size"]})
    assert math.isnan(history["val_digit"][0]) and math.isnan(history["val_accuracy"][0])
    figures = estimator.evaluate(data)
    assert math.isfinite(figures["digit"]) and figures["size"] == pytest.approx(history["val_size"][0])
    batches = in_batches(two_head_arrays().values())
    assert estimator.evaluate(batches)["digit"] > 0 and estimator.evaluate(data) == figures


def test_loaders_that_can_be_read_once_are_read_whole() -> None:
    """Also the first batches, which are checked."""

    def figures(make: Any) -> Any:
        mx.random.seed(3)
        estimator, (evaluated, val) = estimator_of(), ({k: make(v) for k, v in parts().items()} for _ in "ab")
        return estimator.evaluate(evaluated), fit(estimator, parts(), val)["val_loss"]

    assert figures(iter) == figures(list)


def test_one_dict_of_whole_batches_is_as_one_loader() -> None:
    batches = in_batches(two_head_arrays().values())
    ends = []
    for data in (batches, {"all": batches}):
        estimator = estimator_of(two_heads("hybridized"), initializer=mx.init.Constant(0.1))
        loss = fit(estimator, data, sampling=None)["train_loss"]
        ends.append({**snapshot(estimator.net), "loss": loss})
    for name in ends[0]:
        np.testing.assert_allclose(ends[1][name], ends[0][name], rtol=1e-5, err_msg=name)


def test_ranks_draw_one_order_and_refuse_to_join() -> None:
    seen: dict[int, list[str]] = {0: [], 1: []}

    def train(world: Any) -> Any:
        np.random.seed(world.rank)
        estimator = estimator_of(initializer="ones", world=world)
        watch = handler("Watch", batch_begin=lambda estimator, batch: seen[world.rank].append(batch.name))
        fit(estimator, None, None, watch, epochs=2, sampling=Proportional())
        fit(estimator, sampling=Together())

    for error in run_ranks(2, train):
        assert "sampling: Together joins batches in one process only, but 2 train together" in str(error)
    assert seen[0] == seen[1] and len(seen[0]) == 14


# ---- what is shown


def test_the_plan_says_how_much_is_taken_of_each() -> None:
    estimator = estimator_of()
    history = fit(estimator, parts(), parts())
    lines = [" ".join(line.split()) for line in str(estimator.plan).splitlines()]
    start = lines.index("an epoch, by RoundRobin")
    assert lines[start + 1 : start + 3] == [
        "loader digit 4 batches, 1.33 passes image, digit",
        "loader size 4 batches, 1 pass image, size",
    ]
    labels = [row.value for row in estimator.plan.train.rows if row.what == "label"]
    assert labels == ["(8,) float32", "(8, 1) float32"] and history["train_passes_size"] == [1]


def test_progress_tells_which_loader() -> None:
    stream = io.StringIO()
    bar = ProgressBar(stream, refresh=0, enabled=True)
    MultiEstimator(two_heads(), two_head_spec()).fit(
        parts(), parts(), 1, event_handlers=[LoggingHandler(), bar]
    )
    for title in ("epoch 1/1, digit", "epoch 1/1, size", "evaluate, digit", "evaluate, size"):
        assert title in stream.getvalue()


OF_A_FILE = """
from multifit.sampling import RoundRobin

epochs = 1

def data():
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("float32"), point[:, :1]
    loaders = {
        name: gluon.data.DataLoader(gluon.data.ArrayDataset(point, labels), 10)
        for name, labels in (("kind", kind), ("place", place))
    }
    return loaders, loaders

def sampling():
    return RoundRobin()
"""


def test_a_task_file_may_return_loaders_and_a_sampling(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # pictures take the longest
    monkeypatch.setattr("multifit.estimator.run_folder.write_pictures", lambda *arguments: [])
    Path("turns.py").write_text(TASK + SHARED + OF_A_FILE)
    for command, shown in (
        (["check", "turns.py"], "an epoch, by RoundRobin"),
        (["train", "turns.py", "--quiet"], ""),
        (["export", "turns.py", "--from", "runs/turns"], ""),
        (["tasks", "turns.py", "--quiet"], "that tasks share, mean of 50 batches of each loader"),
    ):
        assert main(command) == 0 and shown in capsys.readouterr().out
    assert "train_passes_kind" in json.dumps(json.loads(Path("runs/turns/history.json").read_text()))
