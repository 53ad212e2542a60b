"""What plan, progress bars, logs and the command line show of several loaders; several ranks."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from multifit import MetricSpec, MultiEstimator, ProgressBar
from multifit.cli import main
from multifit.sampling import Proportional, RoundRobin, Together
from tests.cli.conftest import TASK
from tests.cli.test_tasks import SHARED
from tests.common.compare import snapshot
from tests.common.data import in_batches, two_head_arrays
from tests.common.hand_loop import SILENT, LoggingHandler
from tests.common.joint_training import assert_as_alone
from tests.common.nets import two_heads
from tests.common.ranks import run_ranks
from tests.common.specs import two_head_spec

from .runs import SGD, parts
from .test_resume import shuffled

import mxnet as mx  # isort: skip


def test_the_plan_says_how_much_is_taken_of_each() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    plan = estimator.check(parts(), parts(), sampling=RoundRobin())
    lines = [" ".join(line.split()) for line in str(plan).splitlines()]
    start = lines.index("an epoch, by RoundRobin")
    assert lines[start + 1 : start + 3] == [
        "loader digit 4 batches, 1.33 passes image, digit",
        "loader size 4 batches, 1 pass image, size",
    ]
    assert [row.value for row in plan.train.rows if row.what == "label"] == ["(8,) float32", "(8, 1) float32"]
    estimator.fit(parts(), parts(), epochs=1, event_handlers=SILENT, sampling=RoundRobin())
    assert str(estimator.plan).split("training")[0] == str(plan).split("training")[0]


def test_progress_tells_which_loader() -> None:
    stream = io.StringIO()
    estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer=mx.init.Xavier())
    bar = ProgressBar(stream, refresh=0, enabled=True)
    handlers = [LoggingHandler(), bar]
    estimator.fit(parts(), parts(), epochs=1, event_handlers=handlers, sampling=RoundRobin())
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
    monkeypatch.setattr(
        "multifit.estimator.run_folder.write_pictures", lambda *arguments: []
    )  # they take the longest
    Path("turns.py").write_text(TASK + SHARED + OF_A_FILE)
    assert main(["check", "turns.py"]) == 0
    assert "an epoch, by RoundRobin" in capsys.readouterr().out
    assert main(["train", "turns.py", "--quiet"]) == 0
    history = json.loads(Path("runs/turns/history.json").read_text())
    assert "train_passes_kind" in json.dumps(history)
    assert main(["evaluate", "turns.py", "--from", "runs/turns"]) == 0
    assert main(["export", "turns.py", "--from", "runs/turns"]) == 0
    assert main(["tasks", "turns.py", "--quiet"]) == 0
    assert "that tasks share, mean of 50 batches of each loader" in capsys.readouterr().out


METRICS = {
    "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
    "own": MetricSpec(lambda y, out: abs(y - out).mean(), "size", "size", mode="min", stage="evaluate"),
}


def test_two_ranks_train_as_one() -> None:
    """One loader is a DataLoader, the other a list."""

    def train(world: Any) -> dict[str, Any]:
        net = two_heads("hybridized")
        net.initialize(mx.init.Constant(0.1))
        estimator = MultiEstimator(net, two_head_spec(metrics=METRICS), SGD, world=world)
        data = {**shuffled(shuffle=False), "size": parts()["size"]}
        history = estimator.fit(data, parts(), epochs=1, event_handlers=SILENT, sampling=RoundRobin())
        return {**snapshot(net), **history}

    assert_as_alone(train)


def test_ranks_draw_one_order_and_refuse_to_join() -> None:
    seen: dict[int, list[str]] = {}

    def train(world: Any) -> Any:
        np.random.seed(world.rank)
        seen[world.rank] = []

        class Watch:
            def batch_begin(self, estimator: Any, batch: Any) -> None:
                seen[world.rank].append(batch.name)

        estimator = MultiEstimator(two_heads(), two_head_spec(), SGD, initializer="ones", world=world)
        estimator.fit(parts(), epochs=2, event_handlers=[*SILENT, Watch()], sampling=Proportional())
        estimator.fit(parts(), epochs=1, event_handlers=SILENT, sampling=Together())

    for error in run_ranks(2, train):
        assert "sampling: Together joins batches in one process only, but 2 train together" in str(error)
    assert seen[0] == seen[1] and len(seen[0]) == 14


def test_one_dict_of_whole_batches_is_as_one_loader() -> None:
    batches = in_batches(two_head_arrays().values())
    ends = []
    for data in (batches, {"all": batches}):
        net = two_heads("hybridized")
        net.initialize(mx.init.Constant(0.1))
        history = MultiEstimator(net, two_head_spec(), SGD).fit(data, epochs=1, event_handlers=SILENT)
        ends.append({**snapshot(net), "loss": history["train_loss"]})
    for name in ends[0]:
        np.testing.assert_allclose(ends[1][name], ends[0][name], rtol=1e-5, err_msg=name)
