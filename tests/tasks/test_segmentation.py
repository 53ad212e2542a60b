"""Segmentation: small trainings of every model on every source; the decoder; the drawings."""

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
from mxnet import nd

FILE = Path(__file__).parents[2] / "tasks" / "segmentation.py"
SMALL = ("train_count=4", "val_count=2", "batch_size=2")


def train_briefly(folder: Path, *arguments: str) -> dict[str, list[float]]:
    settings = ["--set", *SMALL, *arguments]
    assert main(["train", str(FILE), "--output", str(folder), "--epochs", "1", "--quiet", *settings]) == 0
    return json.loads((folder / "history.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the smallest task once; return its folder."""
    folder = tmp_path_factory.mktemp("run")
    train_briefly(folder, "size=32")
    return folder


@pytest.mark.parametrize(
    "settings", [("data=scenes", "size=64"), ("model=fcn", "size=32", "aux_weight=0.5", "--devices", "2")]
)
def test_a_small_training(tmp_path, settings):
    figures = train_briefly(tmp_path, *settings)
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_seg.mIoU"][0] <= 1
    assert figures["lr"] == [0.0]  # zero after the last step
    assert ("train_aux" in figures) == ("model=fcn" in settings)
    if "model=fcn" in settings:
        objective = figures["train_pixels"][0] + 0.5 * figures["train_aux"][0]
        assert figures["train_loss"][0] == pytest.approx(objective, rel=1e-5)
    assert (tmp_path / "samples.png").stat().st_size > 10_000


def test_the_decoder_returns_a_score_for_every_pixel():
    task = TaskFile(FILE).module
    net = task.TinyFCN(4)
    net.initialize()
    assert net(nd.zeros((2, 3, 64, 96))).shape == (2, 4, 64, 96)


def test_predict_draws_the_mask(run, tmp_path, capsys):
    assert 0 <= json.loads((run / "history.json").read_text())["val_seg.mIoU"][0] <= 1
    picture = tmp_path / "any.png"
    cv2.imwrite(str(picture), np.random.RandomState(0).randint(0, 256, (50, 40, 3), "uint8"))
    assert main(["predict", str(FILE), "--from", str(run), "--output", str(tmp_path), str(picture)]) == 0
    assert Path(capsys.readouterr().out.strip().splitlines()[-1].split(": ")[1]).stat().st_size > 3_000
