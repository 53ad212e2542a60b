"""PASCAL VOC from the folders of its archives, read by gluoncv's data sets."""

from pathlib import Path
from typing import Any

from gluoncv.data import VOCDetection, VOCSegmentation
from mxnet.gluon.data.vision import transforms

from .images import DEVIATION, MEAN

__all__ = ["CLASSES", "detection", "segmentation"]

CLASSES = VOCDetection.CLASSES


def detection(root: str) -> tuple[Any, Any]:
    """Return data sets of images and boxes: trainval of 2007 and, if it exists, of 2012; test of 2007.

    Parameters
    ----------
    root : str
        The folder that contains ``VOC2007``.

    Returns
    -------
    train, test : VOCDetection
        Images (H, W, 3), uint8, and arrays (M, 6): corners, class, difficult.

    Raises
    ------
    FileNotFoundError
        A file or folder is missing; the message says which are needed.
    """
    _require(root, "VOC2007", "ImageSets/Main/trainval.txt", "ImageSets/Main/test.txt", "Annotations")
    years = [year for year in (2007, 2012) if (Path(root) / f"VOC{year}").is_dir()]
    train = VOCDetection(root, splits=[(year, "trainval") for year in years])
    return train, VOCDetection(root, splits=[(2007, "test")])


def segmentation(root: str, size: int) -> tuple[Any, Any]:
    """Return data sets of images and masks of VOC2012: trainval without val, randomly cropped, and val.

    Parameters
    ----------
    root : str
        The folder that contains ``VOC2012``.
    size : int
        The side of the crops in pixels.

    Returns
    -------
    train, val : VOCSegmentation
        Images (3, size, size), normalized, and masks (size, size), in which -1 is ignored.

    Raises
    ------
    FileNotFoundError
        A file or folder is missing; the message says which are needed.
    """
    lists = ("ImageSets/Segmentation/trainval.txt", "ImageSets/Segmentation/val.txt")
    _require(root, "VOC2012", *lists, "SegmentationClass")
    prepare = transforms.Compose([transforms.ToTensor(), transforms.Normalize(tuple(MEAN), tuple(DEVIATION))])
    options = {"transform": prepare, "base_size": size, "crop_size": size}
    train = VOCSegmentation(root, split="train", **options)
    val = VOCSegmentation(root, split="val", **options)
    # gluoncv's "train" is VOC's trainval; val must not be trained on.
    held_out = set(val.images)
    pairs = [pair for pair in zip(train.images, train.masks) if pair[0] not in held_out]
    train.images, train.masks = map(list, zip(*pairs))
    return train, val


def _require(root: str, year: str, *needed: str) -> None:
    folder = Path(root) / year
    missing = [name for name in (*needed, "JPEGImages") if not (folder / name).exists()]
    if missing or not root:
        raise FileNotFoundError(
            f"dataset=voc: {folder} lacks {', '.join(missing) or year}; "
            "--set dataset=voc root=DIR must be the "
            f"folder that contains {year} (VOCdevkit in archives), with {', '.join(needed)} and JPEGImages"
        )
