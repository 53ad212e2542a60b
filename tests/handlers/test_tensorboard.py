"""TensorBoardHandler; the event files are read back."""

import errno
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from multifit.handlers import MetricHandler, ValidationHandler
from multifit.handlers.plots import new_figure
from multifit.handlers.tensorboard import TensorBoardHandler
from multifit.spec.plan import Plan

pytest.importorskip("tensorboardX")
from tensorboardX.proto.event_pb2 import Event  # noqa: E402


def events(folder: Path) -> Iterator[Any]:
    """Yield the events: each is its length, a checksum of that, a protobuf, and a checksum of that."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]


def values(folder: Path, kind: str) -> dict[str, dict[int, Any]]:
    """Return tag -> step -> what was written."""
    by_tag: dict[str, dict[int, Any]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == kind:
                by_tag.setdefault(value.tag, {})[event.step] = getattr(value, kind)
    return by_tag


def test_figures_and_rates_of_each_epoch(run: Any, tmp_path: Path) -> None:
    figures = {"train_VOC.mAP": 0.5, "train_a/b": math.inf, "train_c": math.nan}  # the last was not measured
    run.train = lambda state: {"train_loss": 1.0 / state.step, **figures}
    run.learning_rates, run.plan = lambda: {"lr_body": 0.25}, Plan(("cpu(0)",), 8)
    handler = TensorBoardHandler(tmp_path)
    run.fit(handler, MetricHandler(), ValidationHandler("data", epoch_period=2), epochs=2)
    assert values(tmp_path, "simple_value") == {
        "train/loss": {1: pytest.approx(1 / 3), 2: pytest.approx(1 / 6)},
        "train/VOC.mAP": {1: 0.5, 2: 0.5},
        "train/a/b": {1: math.inf, 2: math.inf},
        "lr/body": {1: 0.25, 2: 0.25},
        "val/loss": {2: pytest.approx(1 / 3)},  # the first epoch had none
    }
    assert run.read == [("train", 3), ("train", 6)]  # by MetricHandler
    assert not (tmp_path / "batches").exists()
    ((tag, texts),) = values(tmp_path, "tensor").items()  # the plan, once
    assert tag == "plan/text_summary" and list(texts) == [1]
    assert texts[1].string_val == [b"    batches of 8 on cpu(0)\n"]


def test_a_second_fit_continues_and_discards_later_steps(run: Any, tmp_path: Path) -> None:
    handler = TensorBoardHandler(str(tmp_path), every=2)
    run.fit(handler, MetricHandler(), epochs=2)
    run.fit(handler, MetricHandler(), epochs=1)
    assert list(values(tmp_path, "simple_value")["lr"]) == [1, 2, 3]
    running = values(tmp_path / "batches", "simple_value")
    assert running == {"train/loss": {step: pytest.approx(1 / step) for step in range(2, 10, 2)}}
    for folder, begin in ((tmp_path, 3), (tmp_path / "batches", 7)):
        assert [event.step for event in events(folder) if event.HasField("session_log")] == [1, begin]


def test_weights_and_gradients(run: Any, tmp_path: Path) -> None:
    run.weights = {
        "body.0.weight": np.array([1.0, 2.0, 3.0]),
        "body.0.running_mean": np.array([7.0]),
        "lost": np.array([math.nan]),
    }
    run.gradients = {"body.0.weight": np.array([0.5, math.nan, -math.inf]), "lost": np.array([math.nan])}
    run.fit(TensorBoardHandler(tmp_path, weights=True), MetricHandler(), epochs=2)
    by_tag = values(tmp_path, "histo")
    assert {(tag, step): (of.num, of.sum) for tag, steps in by_tag.items() for step, of in steps.items()} == {
        ("weights/body.0.weight", 1): (3.0, 6.0), ("weights/body.0.weight", 2): (3.0, 6.0),
        ("weights/body.0.running_mean", 1): (1.0, 7.0), ("weights/body.0.running_mean", 2): (1.0, 7.0),
        ("gradients/body.0.weight", 1): (1.0, 0.5), ("gradients/body.0.weight", 2): (1.0, 0.5),
    }  # fmt: skip
    histogram = by_tag["weights/body.0.weight"][2]
    assert (histogram.min, histogram.max) == (1.0, 3.0)


def test_pictures(run: Any, tmp_path: Path) -> None:
    handler = TensorBoardHandler(tmp_path, pictures=lambda estimator: {"samples": new_figure(1, 0.5)})
    run.fit(handler, MetricHandler(), epochs=2)
    (images,) = values(tmp_path, "image").values()
    assert [(each.width, each.height) for each in images.values()] == [(100, 50)] * 2
    assert images[2].encoded_image_string[:4] == b"\x89PNG"


def test_a_full_disk_is_one_warning(run, tmp_path, log, monkeypatch) -> None:
    writer = MagicMock()
    writer.flush.side_effect = writer.close.side_effect = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("tensorboardX.SummaryWriter", lambda *args, **options: writer)
    run.fit(TensorBoardHandler(tmp_path, every=1), MetricHandler(), epochs=3)
    (message,) = log.messages
    start = f"TensorBoardHandler({tmp_path}): flush failed (OSError: [Errno 28] No space left on device)"
    assert message == f"{start}; training continues, and nothing more is logged there"
    writer.file_writer.event_writer._event_queue.cancel_join_thread.assert_called()


def test_a_file_in_place_of_the_folder_is_one_warning_a_fit(run: Any, tmp_path: Path, log: Any) -> None:
    (tmp_path / "events").write_text("")
    handler = TensorBoardHandler(tmp_path / "events", every=1)
    for _ in range(2):
        run.fit(handler, MetricHandler(), epochs=2)
    assert len(log.messages) == 2 and all("Not a directory" in message for message in log.messages)
    (tmp_path / "events").unlink()
    run.fit(handler, MetricHandler(), epochs=1)
    assert len(log.messages) == 2 and list(values(tmp_path / "events", "simple_value"))


def test_without_tensorboardx_the_error_names_the_extra(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install tensorboardX"):
        TensorBoardHandler(tmp_path)


def test_errors_of_pictures_are_not_the_disks(run: Any, tmp_path: Path) -> None:
    def missing(estimator: Any) -> Any:
        raise FileNotFoundError("no such picture")

    with pytest.raises(FileNotFoundError, match="^no such picture\n"):
        run.fit(handler := TensorBoardHandler(tmp_path, pictures=missing))
    handler.train_end(run)
