"""Detection: every body on every source at its smallest; the targets that an SSD is trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from multifit.cli import main
from multifit.taskfile import TaskFile

# isort: split
import mxnet as mx
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet import nd

FILE = Path(__file__).parents[2] / "tasks" / "detection.py"
SMALL = ("train_count=4", "val_count=2", "batch_size=2", "size=64")


def dry_run(folder: Path, *arguments: str) -> dict[str, list[float]]:
    settings = ["--set", *SMALL, *arguments]
    assert main(["train", str(FILE), "--output", str(folder), "--epochs", "1", "--quiet", *settings]) == 0
    return json.loads((folder / "history.json").read_text())


@pytest.fixture
def task():
    """Return the task's module."""
    return TaskFile(FILE).module


@pytest.mark.parametrize(
    "settings", [("base=tiny", "--devices", "2"), ("base=resnet18_v1",), ("data=shapes",)]
)
def test_a_dry_run(tmp_path, settings):
    figures = dry_run(tmp_path, *settings)
    parts = figures["train_multibox.cls"][0] + figures["train_multibox.box"][0]
    assert figures["train_loss"][0] == pytest.approx(parts, rel=1e-5)
    assert math.isfinite(parts)
    assert 0 <= figures["val_VOC.mAP"][0] <= 1
    assert (tmp_path / "samples.png").stat().st_size > 10_000


def test_the_rate_falls_once(tmp_path):
    assert dry_run(tmp_path)["lr"] == [pytest.approx(1e-4)]  # after the first of two steps


def test_predicting_draws_what_is_found(tmp_path, capsys):
    dry_run(tmp_path / "run")
    picture = tmp_path / "any.png"
    cv2.imwrite(str(picture), np.random.RandomState(0).randint(0, 256, (50, 40, 3), "uint8"))
    assert main(["predict", str(FILE), "--from", str(tmp_path / "run"), str(picture)]) == 0
    assert Path(capsys.readouterr().out.strip().splitlines()[-1].split(": ")[1]).stat().st_size > 3_000


def test_targets_say_where_the_objects_are(task):
    """Decoded from the anchors, every matched anchor's target is the box of its object."""
    net, made = task.net([mx.cpu()]), task.scenes.scenes(3, task.size)
    classes, offsets = task.anchored.targets(net.anchors, made.boxes)
    decode = NormalizedBoxCenterDecoder(stds=(0.1, 0.1, 0.2, 0.2))
    boxes = decode(nd.array(offsets), net.anchors).asnumpy()
    for image in range(3):
        found = {
            (*boxes[image, i].round().astype(int), classes[image, i] - 1)
            for i in np.flatnonzero(classes[image])
        }
        there = {(*row[:4].astype(int), row[4]) for row in made.boxes[image] if row[4] >= 0}
        assert found == there


def test_rows_that_fill_up_match_nothing(task):
    net, boxes = task.net([mx.cpu()]), task.scenes.scenes(2, task.size).boxes
    longer = np.concatenate([boxes, np.full((2, 3, 6), -1, "float32")], axis=1)
    for expected, found in zip(
        task.anchored.targets(net.anchors, boxes), task.anchored.targets(net.anchors, longer)
    ):
        np.testing.assert_array_equal(expected, found)


def test_anchors_cover_the_image(task):
    anchors = task.net([mx.cpu()]).anchors.asnumpy()
    assert anchors.shape == (1, 4 * (16**2 + 8**2 + 4**2), 4)
    assert (anchors[..., :2].min(), anchors[..., :2].max()) == (4, 124)


def test_only_what_the_net_is_sure_of_is_drawn(task):
    found = {
        "scores": np.array([[[0.9], [0.5], [0.49], [-1]]]),
        "ids": np.array([[[3], [1], [2], [-1]]]),
        "boxes": np.arange(16).reshape(1, 4, 4),
    }
    boxes, ids = task.confident(found, 0)
    assert boxes.shape == (2, 4)
    assert task.named(ids, "abcdef") == "b d"
    assert task.named([], "abc") == "nothing"
