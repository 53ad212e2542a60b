"""Single handwritten digits: scikit-learn's, MNIST from its files, or from any image file."""

from pathlib import Path

import cv2
import numpy as np
from mxnet.gluon.data.vision import MNIST
from sklearn.datasets import load_digits

__all__ = ["digits", "mnist", "read_digit", "resized"]

Part = tuple  # images (N, 1, H, W), float32 from 0 (paper) to 1 (ink); classes (N,), int32

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


class _FilesOfMNIST(MNIST):
    """Gluon's MNIST without checksums: it reads any files of the format, and downloads nothing."""

    def _get_data(self) -> None:
        for part in ("_train_data", "_train_label", "_test_data", "_test_label"):
            setattr(self, part, (getattr(self, part)[0], None))
        super()._get_data()


def digits() -> tuple[Part, Part]:
    """Return scikit-learn's 1797 digits, 8 by 8 pixels: 1437 for training and the other 360."""
    pixels, kinds = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(kinds))  # the same split for every seed
    image, kind = (pixels[order] / 16).astype("float32").reshape(-1, 1, 8, 8), kinds[order].astype("int32")
    return (image[:1437], kind[:1437]), (image[1437:], kind[1437:])


def mnist(root: str) -> tuple[Part, Part]:
    """Return the training and the test part of MNIST, or of a data set in its format (Fashion-MNIST).

    Parameters
    ----------
    root : str
        The folder with the four files.

    Raises
    ------
    FileNotFoundError
        A file is missing; the message says where it must be.
    """
    missing = [name for name in FILES if not (root and (Path(root) / name).is_file())]
    if missing:
        raise FileNotFoundError(
            f"dataset=mnist: {', '.join(missing)} not found in {root or 'no folder at all'}; root must be "
            f"the folder with {', '.join(FILES)}: --set dataset=mnist root=DIR"
        )
    train, test = (_FilesOfMNIST(root, train=part)[:] for part in (True, False))
    return _part(*train), _part(*test)


def _part(image, kind: np.ndarray) -> Part:
    return image.asnumpy().transpose(0, 3, 1, 2).astype("float32") / 255, kind


def resized(images: np.ndarray, side: int) -> np.ndarray:
    """Return images (N, 1, H, W) as (N, 1, side, side), interpolated linearly."""
    if images.shape[2:] == (side, side):
        return images
    return np.stack([cv2.resize(image, (side, side)) for image in images[:, 0]])[:, None]


def read_digit(path: str, side: int) -> np.ndarray:
    """Read one digit from an image file as (1, side, side), from 0 (paper) to 1 (ink).

    Raises
    ------
    FileNotFoundError
        There is no readable image at `path`.
    """
    pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if pixels is None:
        raise FileNotFoundError(f"there is no image {path}")
    pixels = pixels.astype("float32") / 255
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    if np.median(border) > 0.5:  # dark ink on bright paper
        pixels = 1 - pixels
    return cv2.resize(pixels, (side, side), interpolation=cv2.INTER_AREA)[None]
