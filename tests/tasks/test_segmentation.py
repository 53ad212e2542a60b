"""Segmentation: small trainings of every model on every source; the decoder; the drawings."""

import math

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, check, is_drawn, predict, random_picture, train

# isort: split
from mxnet import nd

FILE = TASKS / "segmentation.py"
SMALL = ("epochs=1", "train_count=4", "val_count=2", "batch_size=2")


def test_a_small_training(tmp_path, capsys):
    figures = train(FILE, tmp_path, *SMALL, "dataset=scenes", "size=64", "--devices", "2")
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_seg.mIoU"][0] <= 1
    assert figures["lr"] == [0.0]  # zero after the last step
    assert (tmp_path / "samples.png").stat().st_size > 10_000
    (line,) = predict(FILE, tmp_path, capsys, random_picture(tmp_path))
    assert is_drawn(line) and "train_aux" not in figures


def test_another_net_with_an_auxiliary_loss_fits():  # nightly/table.py trains it
    check(FILE, *SMALL, "model=fcn", "size=32", "aux_weight=0.5")


def test_the_decoder_returns_a_score_for_every_pixel():
    net = TaskFile(FILE).module.TinyFCN(4)
    net.initialize()
    assert net(nd.zeros((2, 3, 64, 96))).shape == (2, 4, 64, 96)
