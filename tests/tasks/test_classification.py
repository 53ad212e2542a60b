"""Classification: small trainings of every net on files in MNIST's format; reading single digits."""

import gzip
import math
import struct
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from sklearn.datasets import load_digits

from .commands import TASKS, check, predict, train

FILE = TASKS / "classification.py"
sys.path.insert(0, str(TASKS))

from data.mnist import digits, mnist, read_digit  # noqa: E402


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write bytes in the format of MNIST: a magic number, the sizes, the values."""
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes())


@pytest.fixture
def root(tmp_path) -> Path:
    """Return a folder with the four files: eight training digits and four others."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    pixels, kinds = load_digits(return_X_y=True)
    large = [cv2.resize(image.reshape(8, 8) * 15.9, (28, 28)) for image in pixels[:12]]
    for part, chosen in (("train", np.s_[:8]), ("t10k", np.s_[8:12])):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", np.array(large[chosen]).astype("uint8"))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", kinds[chosen].astype("uint8"))
    return folder


@pytest.mark.parametrize("model", ["lenet", "alexnet", "resnet18"])
def test_the_other_nets_fit_the_data(root, model):  # nightly/table.py trains them
    check(FILE, "dataset=mnist", f"root={root}", f"model={model}", "batch_size=4")


def test_a_small_training(root, tmp_path, capsys):
    settings = "epochs=1", "dataset=mnist", f"root={root}", "model=mlp", "batch_size=4"
    figures = train(FILE, tmp_path / "run", *settings)
    assert math.isfinite(figures["train_loss"][0]) and math.isfinite(figures["val_loss"][0])
    assert figures["val_accuracy"][0] <= figures["val_top3"][0] <= 1
    assert (tmp_path / "run" / "confusion_digit.png").stat().st_size > 5_000
    picture = tmp_path / "seven.png"
    cv2.imwrite(str(picture), np.zeros((40, 40), "uint8"))
    (line,) = predict(FILE, tmp_path / "run", capsys, str(picture))
    digit, probability = line.split(": ")[1].split()
    assert digit in "0123456789" and 0.1 <= float(probability.strip("()")) <= 1


def test_reading_mnist(root):
    (image, kind), (test_image, test_kind) = mnist(str(root))
    assert image.shape == (8, 1, 28, 28) and test_image.shape == (4, 1, 28, 28)
    assert image.dtype == np.float32 and image.min() == 0 and 0.9 < image.max() <= 1
    np.testing.assert_array_equal(np.concatenate([kind, test_kind]), load_digits().target[:12])
    row = cv2.resize(load_digits().data[0].reshape(8, 8) * 15.9, (28, 28)).astype("uint8")
    np.testing.assert_allclose(image[0, 0], row / 255, rtol=1e-6)
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        FileNotFoundError, match="dataset=mnist: t10k-labels-idx1-ubyte.gz not found in .*must"
    ):
        mnist(str(root))
    with pytest.raises(FileNotFoundError, match="in no folder at all; root must be the folder with"):
        mnist("")


def test_no_digit_is_in_both_parts():
    (train_image, train_kind), (test_image, test_kind) = digits()
    assert (len(train_kind), len(test_kind)) == (1437, 360)
    known = {image.tobytes() for image in train_image}
    assert sum(image.tobytes() in known for image in test_image) == 0
    assert set(train_kind) == set(test_kind) == set(range(10))


def test_dark_and_bright_paper_give_the_same_digit(tmp_path):
    image = (digits()[1][0][0, 0] * 255).astype("uint8")
    framed = cv2.resize(np.pad(image, 1), (100, 100), interpolation=cv2.INTER_NEAREST)
    for name, pixels in (("dark.png", framed), ("bright.png", 255 - framed)):
        cv2.imwrite(str(tmp_path / name), pixels)
    dark, bright = (read_digit(str(tmp_path / name), 10) for name in ("dark.png", "bright.png"))
    assert dark.shape == (1, 10, 10) and dark.max() > 0.9
    np.testing.assert_allclose(dark, bright, atol=0.01)
    with pytest.raises(FileNotFoundError, match="there is no image .*nothing.png"):
        read_digit(str(tmp_path / "nothing.png"), 8)
