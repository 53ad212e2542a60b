"""What each task must reach on data that it was not trained on: the one table of thresholds.

The floors of the CPU column are the project's promises. The rows of the GPU column need a GPU and a real data
set; those of VOC are what training without pretrained weights must reach at the very least.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

__all__ = ["ROWS", "Row"]


class Row(NamedTuple):
    """One training and what must come of it.

    Attributes
    ----------
    task : str
        The file in ``tasks/``, without ``.py``.
    settings : str
        What ``--set`` is given, separated by spaces.
    epochs : int
        How long to train.
    floors : mapping of str to float
        The least value of each figure after the last epoch.
    device : {"cpu", "gpu"}
        The column that it belongs to.
    data : str
        The data set that it needs: a folder of that name in the folder of ``--data``. Empty for none.
    precision : str
        In what the net computes; the floors are the same.
    """

    task: str
    settings: str
    epochs: int
    floors: Mapping[str, float]
    device: str = "cpu"
    data: str = ""
    precision: str = "float32"

    @property
    def name(self) -> str:
        """How reports call it."""
        lowered = "" if self.precision == "float32" else self.precision
        return " ".join(filter(None, [self.task, self.settings, self.data and f"data={self.data}", lowered]))


ROWS = (
    Row("digits", "", 20, {"val_digit_accuracy": 0.97, "val_parity_accuracy": 0.97}),
    Row("logistic_regression", "", 20, {"val_accuracy": 0.97, "val_f1": 0.97}),
    Row("classification", "model=mlp", 20, {"val_accuracy": 0.97}),
    Row("classification", "model=lenet", 12, {"val_accuracy": 0.96}),
    Row("classification", "model=alexnet", 10, {"val_accuracy": 0.94}),
    Row("classification", "model=vgg", 6, {"val_accuracy": 0.90}),
    Row("classification", "model=resnet18", 8, {"val_accuracy": 0.95}),
    Row("augmentation", "", 12, {"val_accuracy": 0.98}),
    Row("segmentation", "model=tiny", 15, {"val_seg.mIoU": 0.85}),
    Row("segmentation", "model=fcn", 15, {"val_seg.mIoU": 0.80}),
    Row("segmentation", "model=tiny data=scenes", 8, {"val_seg.mIoU": 0.75}),
    Row("detection", "", 10, {"val_VOC.mAP": 0.95}),
    Row("detection", "base=resnet18_v1", 10, {"val_VOC.mAP": 0.95}),
    Row("sentiment", "model=birnn", 8, {"val_accuracy": 0.97}),
    Row("sentiment", "model=textcnn", 8, {"val_accuracy": 0.95}),
    Row("translation", "", 10, {"val_bleu": 0.95}),
    Row("translation", "model=transformer", 10, {"val_bleu": 0.90}),
    Row(
        "digits",
        "",
        20,
        {"val_digit_accuracy": 0.97, "val_parity_accuracy": 0.97},
        precision="bfloat16",
    ),
    Row("classification", "model=mlp", 20, {"val_accuracy": 0.97}, precision="bfloat16"),
    Row("classification", "model=lenet", 12, {"val_accuracy": 0.96}, precision="bfloat16"),
    Row("classification", "model=resnet18", 8, {"val_accuracy": 0.95}, precision="bfloat16"),
    Row("segmentation", "model=tiny", 15, {"val_seg.mIoU": 0.85}, precision="bfloat16"),
    Row("detection", "", 10, {"val_VOC.mAP": 0.95}, precision="bfloat16"),
    Row(
        "scenes",
        "",
        6,
        {"val_detection/VOC.mAP": 0.95, "val_segmentation/seg.mIoU": 0.85, "val_count/accuracy": 0.97},
    ),
    Row("classification", "model=resnet18", 5, {"val_accuracy": 0.99}, "gpu", "mnist"),
    Row("sentiment", "model=birnn length=200", 10, {"val_accuracy": 0.80}, "gpu", "imdb"),
    Row("detection", "base=resnet18_v1 size=320", 60, {"val_VOC.mAP": 0.30}, "gpu", "voc"),
    Row("segmentation", "model=fcn", 60, {"val_seg.mIoU": 0.10}, "gpu", "voc"),
)
