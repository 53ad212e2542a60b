"""The trackers of `multifit.loggers`: MLflow with a database of its own, the others with a stand-in.

`tests/torch/test_loggers.py` has W&B and Comet themselves.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import numpy as np
import pytest
from mxnet import gluon

from multifit import LogTo, MultiEstimator, ProgressBar, loggers
from multifit.handlers.plots import new_figure

DATA = [(np.ones((4, 3), "float32"), np.zeros(4, "float32"))] * 2


def fit(logger: Any, **options: Any) -> Any:
    estimator = MultiEstimator(gluon.nn.Dense(2), gluon.loss.SoftmaxCrossEntropyLoss())
    handlers = [LogTo(logger, **options), ProgressBar(enabled=False)]
    return estimator.fit(DATA, DATA, epochs=2, event_handlers=handlers)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow, which writes to a database in a new folder."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    import mlflow

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    yield mlflow
    mlflow.set_tracking_uri(None)


def test_mlflow(mlflow: Any, tmp_path: Path) -> None:
    """A run may go on with other settings."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    options = {
        "every": 1,
        "settings": {"width (px)": 64},
        "pictures": lambda estimator: {"samples": new_figure(1, 1)},
        "files": ["folder", "b.txt"],
    }
    with mlflow.start_run() as run:
        history = fit(loggers.MLflow(run), **options)
    client, number = mlflow.MlflowClient(), run.info.run_id
    for figure in ("train_loss", "val_accuracy", "lr"):
        metrics = client.get_metric_history(number, figure)
        assert [(each.step, each.value) for each in metrics] == list(enumerate(history[figure], 1))
    assert [each.step for each in client.get_metric_history(number, "batches/train_loss")] == [1, 2, 3, 4]
    artifacts = Path(run.info.artifact_uri)
    found = sorted(str(path.relative_to(artifacts)) for path in artifacts.rglob("*.*"))
    assert found == ["b.txt", "folder/a.txt", "samples/0001.png", "samples/0002.png"]
    with mlflow.start_run(run_id=number) as again:
        fit(loggers.MLflow(again), settings={"width (px)": 2, "new": 3})
    found = client.get_run(number)
    expected = {"width _px_": "64", "new": "3", "epochs": "2", "trainer.optimizer": "Adam"}
    assert expected.items() <= found.data.params.items() and found.info.status == "FINISHED"


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=lambda figure: ("image", figure)))
    run, picture = MagicMock(), new_figure(1, 1)
    logger = loggers.WandB(run)
    logger.log_settings({"a": 1})
    logger.log_figures({"loss": 0.5}, 3, 1)
    logger.log_figures({"batches/loss": 0.25}, 4, None)
    logger.log_picture("samples", picture, 3, 1)
    logger.log_file(tmp_path)
    logger.log_file(tmp_path / "b.txt")
    assert run.mock_calls == [
        call.config.update({"a": 1}, allow_val_change=True),
        call.define_metric("*", step_metric="epoch"),
        call.define_metric("batches/*", step_metric="step"),
        call.log({"loss": 0.5, "step": 3, "epoch": 1}),
        call.log({"batches/loss": 0.25, "step": 4}),
        call.log({"samples": ("image", picture), "step": 3, "epoch": 1}),
        call.log_artifact(str(tmp_path), type="folder"),
        call.log_artifact(str(tmp_path / "b.txt"), type="file"),
    ]


def test_comet(tmp_path: Path) -> None:
    run, picture = MagicMock(), new_figure(1, 1)
    logger = loggers.Comet(run)
    logger.log_settings({"a": 1, "plan": "x" * 1001})
    logger.log_figures({"loss": 0.5}, 3, 1)
    logger.log_picture("samples", picture, 3, 1)
    logger.log_file(tmp_path)
    logger.log_file(tmp_path / "b.txt")
    assert run.mock_calls == [
        call.log_parameters({"a": 1}),
        call.log_text("x" * 1001, metadata={"name": "plan"}),
        call.log_metrics({"loss": 0.5}, step=3, epoch=1),
        call.log_figure("samples", picture, step=3),
        call.log_asset_folder(str(tmp_path), log_file_name=True),
        call.log_asset(str(tmp_path / "b.txt")),
    ]
