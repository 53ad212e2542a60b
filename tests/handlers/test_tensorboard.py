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
from multifit.handlers.tensorboard import TensorBoardHandler

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


class Array:
    def __init__(self, *numbers: float) -> None:
        self.numbers = numbers

    def asnumpy(self) -> Any:
        return np.array(self.numbers, dtype="float32")


class Parameter:
    def __init__(self, data: Array, gradient: Array | None) -> None:
        self.data, self.gradient = data, gradient
        self.grad_req = "null" if gradient is None else "write"

    def list_data(self) -> list[Array]:
        return [self.data]

    def list_grad(self) -> list[Array]:
        assert self.gradient is not None
        return [self.gradient]


def test_figures_and_rates_of_each_epoch(run: Any, tmp_path: Path) -> None:
    run.train = lambda state: {"train_loss": 1.0 / state.step, "train_VOC.mAP": 0.5, "train_a/b": 2.0}
    run.learning_rates = lambda: {"lr_body": 0.25}
    handler = TensorBoardHandler(tmp_path)
    run.fit(handler, MetricHandler(), ValidationHandler("data", epoch_period=2), epochs=2)
    assert values(tmp_path, "simple_value") == {
        "train/loss": {1: pytest.approx(1 / 3), 2: pytest.approx(1 / 6)},
        "train/VOC.mAP": {1: 0.5, 2: 0.5},
        "train/a/b": {1: 2.0, 2: 2.0},
        "lr/body": {1: 0.25, 2: 0.25},
        "val/loss": {2: pytest.approx(1 / 3)},  # the first epoch had none
    }
    assert run.read == [("train", 3), ("train", 6)]  # by MetricHandler
    assert not (tmp_path / "batches").exists()


def test_figures_that_were_not_measured_are_left_out(run: Any, tmp_path: Path) -> None:
    run.train = lambda state: {"train_loss": math.nan, "train_acc": math.inf}
    run.fit(TensorBoardHandler(tmp_path), MetricHandler())
    assert values(tmp_path, "simple_value") == {
        "train/acc": {1: math.inf},
        "lr": {1: pytest.approx(0.001)},
    }


def test_running_figures(run: Any, tmp_path: Path) -> None:
    run.fit(TensorBoardHandler(tmp_path, every=2), batches=3, epochs=2)
    running = values(tmp_path / "batches", "simple_value")
    assert running == {"train/loss": {2: 0.5, 4: 0.25, 6: pytest.approx(1 / 6)}}


def test_a_second_fit_continues_and_discards_later_steps(run: Any, tmp_path: Path) -> None:
    handler = TensorBoardHandler(str(tmp_path), every=1)
    run.fit(handler, MetricHandler(), epochs=2)
    run.fit(handler, MetricHandler(), epochs=1)
    assert list(values(tmp_path, "simple_value")["lr"]) == [1, 2, 3]
    assert list(values(tmp_path / "batches", "simple_value")["train/loss"]) == list(range(1, 10))
    for folder, begin in ((tmp_path, 3), (tmp_path / "batches", 7)):
        assert [event.step for event in events(folder) if event.HasField("session_log")] == [1, begin]


def test_weights_and_gradients(run: Any, tmp_path: Path) -> None:
    run.parameters = {
        "body.0.weight": Parameter(Array(1.0, 2.0, 3.0), Array(0.5, math.nan, -math.inf)),
        "body.0.running_mean": Parameter(Array(7.0), None),
        "lost": Parameter(Array(math.nan), Array(math.nan)),
    }
    run.fit(TensorBoardHandler(tmp_path, weights=True), MetricHandler(), epochs=2)
    by_tag = values(tmp_path, "histo")
    assert list(by_tag) == ["weights/body.0.weight", "gradients/body.0.weight", "weights/body.0.running_mean"]
    histogram = by_tag["weights/body.0.weight"][2]
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (1.0, 3.0, 3.0, 6.0)
    assert by_tag["gradients/body.0.weight"][1].num == 1.0
    assert by_tag["weights/body.0.running_mean"][1].sum == 7.0


def test_the_plan_is_written_once_as_text(run: Any, tmp_path: Path) -> None:
    run.plan = "what   name\nlabel  digit"
    run.fit(TensorBoardHandler(tmp_path), MetricHandler(), epochs=2)
    texts = values(tmp_path, "tensor")
    assert list(texts) == ["plan/text_summary"] and list(texts["plan/text_summary"]) == [1]
    assert texts["plan/text_summary"][1].string_val == [b"    what   name\n    label  digit\n"]


def test_pictures(run: Any, tmp_path: Path) -> None:
    from multifit.plots import new_figure

    asked = []

    def pictures(estimator: Any) -> Any:
        asked.append(estimator)
        return {"samples": new_figure(1, 0.5)}

    run.fit(TensorBoardHandler(tmp_path, pictures=pictures), MetricHandler(), epochs=2)
    image = values(tmp_path, "image")["samples"][2]
    assert (image.width, image.height, image.encoded_image_string[:4]) == (100, 50, b"\x89PNG")
    assert asked == [run, run]


def test_a_full_disk_is_one_warning(run: Any, tmp_path: Path, log: Any) -> None:
    writer = MagicMock()
    writer.flush.side_effect = OSError(errno.ENOSPC, "No space left on device")
    handler = TensorBoardHandler(tmp_path, every=1)
    handler._make_writer = lambda *args, **options: writer
    run.fit(handler, MetricHandler(), epochs=3)
    (message,) = log.messages
    assert message == (
        f"cannot write events for TensorBoard to {tmp_path}: No space left on device; "
        "training continues without them"
    )
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


def test_an_error_of_the_files_own_pictures_is_not_the_disks(run: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="^no such picture\n"):
        run.fit(handler := TensorBoardHandler(tmp_path, pictures=_missing))
    handler.train_end(run)


def _missing(estimator: Any) -> Any:
    raise FileNotFoundError("no such picture")


def test_a_fit_without_epochs_writes_no_file(run: Any, tmp_path: Path) -> None:
    handler = TensorBoardHandler(tmp_path / "none")
    handler.train_begin(run)
    handler.train_end(run)
    assert not (tmp_path / "none").exists()


def test_without_tensorboardx_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install tensorboardX"):
        TensorBoardHandler(tmp_path)


@pytest.mark.parametrize("drawn", [None, {"a": 5}])
def test_pictures_of_another_type_are_an_error(run: Any, tmp_path: Path, drawn: Any) -> None:
    with pytest.raises(ValueError, match="pictures must return a dict of matplotlib figures"):
        run.fit(handler := TensorBoardHandler(tmp_path, pictures=lambda estimator: drawn))
    handler.train_end(run)
