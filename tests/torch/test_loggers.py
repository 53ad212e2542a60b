"""`multifit.loggers` with W&B and Comet themselves, offline, and an estimator that trains with PyTorch."""

import json
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LogTo, MultiEstimator, ProgressBar, loggers
from multifit.handlers.plots import new_figure
from tests.torch.place import DEVICE

from mxnet import gluon  # isort: skip

DATA = [(np.ones((4, 3), "float32"), np.zeros(4, "float32"))] * 2


def fit(logger: Any, file: Path) -> Any:
    net, loss = gluon.nn.Dense(2), gluon.loss.SoftmaxCrossEntropyLoss()
    net.hybridize()
    estimator = MultiEstimator(net, loss, context=DEVICE, engine="torch")
    log = LogTo(
        logger,
        every=1,
        settings={"width": 64},
        pictures=lambda estimator: {"samples": picture()},
        files=[file, file.parent],
    )
    return estimator.fit(DATA, DATA, epochs=2, event_handlers=[log, ProgressBar(enabled=False)])


def picture() -> Any:
    figure = new_figure(1, 1)
    figure.subplots().plot([1, 2])
    return figure


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder of its own."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    return tmp_path / "notes" / "a.txt"


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What multifit logs as warnings, which it does if a tracker fails."""
    messages: list[str] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("multifit")
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """W&B without network; the process that it starts ends with the test."""
    wandb = pytest.importorskip("wandb")
    settings = {"MODE": "offline", "SILENT": "true", "CONSOLE": "off", "ERROR_REPORTING": "false"}
    for name, value in settings.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield wandb
    wandb.teardown()


def test_wandb_offline(wandb: Any, tmp_path: Path, file: Path, warnings: list[str]) -> None:
    with wandb.init(project="digits", dir=str(tmp_path)) as run:
        history = fit(loggers.WandB(run), file)
        assert run.config["width"] == 64 and run.config["epochs"] == 2
        last = dict(run.summary)
    assert (last["epoch"], last["step"]) == (2, 4) and {"samples", "batches/train_loss"} <= set(last)
    for figure in ("train_loss", "val_accuracy", "lr"):
        assert last[figure] == pytest.approx(history[figure][-1])
    assert warnings == []


def test_comet_offline(
    tmp_path: Path, file: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMET_DISABLE_AUTO_LOGGING", "1")  # which would change the modules of others
    comet = pytest.importorskip("comet_ml")
    config = comet.ExperimentConfig(
        offline_directory=str(tmp_path), log_code=False, log_env_details=False, auto_output_logging=False
    )
    run = comet.start(project_name="digits", online=False, experiment_config=config)
    history = fit(loggers.Comet(run), file)
    run.end()
    with zipfile.ZipFile(next(tmp_path.glob("*.zip"))) as archive:
        lines = [json.loads(line) for line in archive.read("messages.json").splitlines()]
    metrics = [line["payload"]["metric"] for line in lines if line["type"] == "metric_msg"]
    for figure in ("train_loss", "val_output"):
        found = [(m["step"], m["epoch"], m["metricValue"]) for m in metrics if m["metricName"] == figure]
        assert found == [(2, 1, history[figure][0]), (4, 2, history[figure][1])]
    assert [m["step"] for m in metrics if m["metricName"] == "batches/train_loss"] == [1, 2, 3, 4]
    params = [line["payload"]["param"] for line in lines if line["type"] == "parameter_msg"]
    assert ("width", 64) in [(param["paramName"], param["paramValue"]) for param in params]
    uploads = [line["payload"]["additional_params"] for line in lines if "upload" in line["type"]]
    assert [each["step"] for each in uploads if each.get("figName") == "samples"] == [2, 4]
    assert {"a.txt", "notes/a.txt"} <= {each.get("fileName") for each in uploads}
    assert warnings == []
