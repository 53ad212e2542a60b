"""Segmentation: every model on every source at its smallest; the decoder; what the command line draws."""

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


def dry_run(folder: Path, *arguments: str) -> dict[str, list[float]]:
    settings = ["--set", *SMALL, *arguments]
    assert main(["train", str(FILE), "--output", str(folder), "--epochs", "1", "--quiet", *settings]) == 0
    return json.loads((folder / "history.json").read_text())


@pytest.mark.parametrize(
    "settings", [("size=32",), ("data=scenes", "size=64"), ("model=fcn", "size=32", "--devices", "2")]
)
def test_a_dry_run(tmp_path, settings):
    figures = dry_run(tmp_path, *settings)
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_seg.mIoU"][0] <= 1
    assert figures["lr"] == [0.0]  # it has fallen all the way after the last step
    assert ("train_aux" in figures) == ("model=fcn" in settings)
    assert (tmp_path / "samples.png").stat().st_size > 10_000


def test_the_auxiliary_loss_counts_by_its_weight(tmp_path):
    figures = dry_run(tmp_path, "model=fcn", "size=32", "aux_weight=0.5")
    expected = figures["train_pixels"][0] + 0.5 * figures["train_aux"][0]
    assert figures["train_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_the_decoder_gives_a_score_for_every_pixel():
    task = TaskFile(FILE).module
    net = task.TinyFCN(4)
    net.initialize()
    assert net(nd.zeros((2, 3, 64, 96))).shape == (2, 4, 64, 96)


def test_it_learns_one_image(tmp_path):
    # far above what always saying "background" gives, 0.25
    settings = ("size=32", "train_count=1", "val_count=1", "batch_size=1")
    assert (
        main(["train", str(FILE), "--output", str(tmp_path), "--epochs", "60", "--quiet", "--set", *settings])
        == 0
    )
    assert json.loads((tmp_path / "history.json").read_text())["train_seg.pixAcc"][-1] > 0.97


def test_predicting_draws_the_mask(tmp_path, capsys):
    dry_run(tmp_path / "run", "size=32")
    picture = tmp_path / "any.png"
    cv2.imwrite(str(picture), np.random.RandomState(0).randint(0, 256, (50, 40, 3), "uint8"))
    assert main(["predict", str(FILE), "--from", str(tmp_path / "run"), str(picture)]) == 0
    assert Path(capsys.readouterr().out.strip().splitlines()[-1].split(": ")[1]).stat().st_size > 3_000
