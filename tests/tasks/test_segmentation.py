"""Segmentation: small trainings of every model on every source; the decoder; the drawings."""

import math

import pytest

from multifit.taskfile import TaskFile

from .commands import TASKS, is_drawn, predict, random_picture, train

# isort: split
from mxnet import nd

FILE = TASKS / "segmentation.py"
SMALL = ("epochs=1", "train_count=4", "val_count=2", "batch_size=2")


@pytest.mark.parametrize(
    "settings", [("dataset=scenes", "size=64"), ("model=fcn", "size=32", "aux_weight=0.5", "--devices", "2")]
)
def test_a_small_training(tmp_path, capsys, settings):
    figures = train(FILE, tmp_path, *SMALL, *settings)
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_seg.mIoU"][0] <= 1
    assert figures["lr"] == [0.0]  # zero after the last step
    assert (tmp_path / "samples.png").stat().st_size > 10_000
    if "model=fcn" in settings:
        objective = figures["train_pixels"][0] + 0.5 * figures["train_aux"][0]
        assert figures["train_loss"][0] == pytest.approx(objective, rel=1e-5)
    else:
        (line,) = predict(FILE, tmp_path, capsys, random_picture(tmp_path))
        assert is_drawn(line) and "train_aux" not in figures


def test_the_decoder_returns_a_score_for_every_pixel():
    net = TaskFile(FILE).module.TinyFCN(4)
    net.initialize()
    assert net(nd.zeros((2, 3, 64, 96))).shape == (2, 4, 64, 96)
