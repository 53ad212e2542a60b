"""Augmentation: a small training, patches of disjoint halves, and the random transforms."""

import math
import sys

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from .commands import TASKS, check, predict, random_picture, train

FILE = TASKS / "augmentation.py"
sys.path.insert(0, str(TASKS))

from data.patches import KINDS, augmentation, patches, plain, read_photograph  # noqa: E402

SMALL = ("epochs=1", "train_patches=4", "val_patches=4", "batch_size=2")


def test_a_small_training(tmp_path, capsys):
    figures = train(FILE, tmp_path, *SMALL)
    assert math.isfinite(figures["train_loss"][0]) and figures["val_accuracy"][0] in (0, 0.25, 0.5, 0.75, 1)
    assert figures["lr"][0] < 0.05  # it falls along the cosine
    assert (tmp_path / "augmented.png").stat().st_size > 20_000
    (line,) = predict(FILE, tmp_path, capsys, random_picture(tmp_path))
    assert line.split(": ")[1].split()[0] in KINDS


def test_it_runs_without_augmentation():
    check(FILE, *SMALL, "augmented=False")


def test_patches_are_balanced_and_repeatable():
    first, again = patches(6, 16), patches(6, 16)
    assert [kind for _, kind in first] == [0, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(first[:][0].asnumpy(), again[:][0].asnumpy())
    assert first[0][0].shape == (16, 16, 3) and first[0][0].dtype == np.uint8


def test_training_and_held_out_patches_are_of_different_halves(monkeypatch):
    photographs = load_sample_images()
    photographs.images = [
        np.where(np.arange(640)[:, None] < 320, 0, image | 255).astype("uint8")
        for image in photographs.images
    ]
    monkeypatch.setattr("data.patches.load_sample_images", lambda: photographs)
    assert (patches(40, 16)[:][0].asnumpy() == 0).all()
    assert (patches(40, 16, held_out=True)[:][0].asnumpy() == 255).all()


def test_augmentation_is_random_and_keeps_the_shape():
    patch = patches(2, 32)[1][0]
    once, twice = augmentation(32)(patch), augmentation(32)(patch)
    assert once.shape == plain()(patch).shape == (3, 32, 32)
    assert abs(once - twice).mean().asscalar() > 0.01
    assert abs(once).max().asscalar() < 5


def test_the_central_square_of_a_photograph_is_read(tmp_path):
    photograph = np.zeros((20, 60, 3), "uint8")
    photograph[:, 20:40] = (1, 2, 3)  # blue, green, red, as OpenCV has it
    cv2.imwrite(str(tmp_path / "photograph.png"), photograph)
    read = read_photograph(str(tmp_path / "photograph.png"), 20).asnumpy()
    assert (read == [3, 2, 1]).all() and read.shape == (20, 20, 3)
    with pytest.raises(FileNotFoundError, match="there is no image"):
        read_photograph(str(tmp_path / "nothing.png"), 20)
