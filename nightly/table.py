"""The floors: what each task must reach on validation data.

The project promises the floors of the CPU column. The rows of the GPU column need a GPU and a real data set;
those of VOC are the least that training without pretrained weights must reach.
"""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["DEVICES", "ROWS", "Device", "Row"]


class Row(NamedTuple):
    """One training and the figures that it must reach.

    Attributes
    ----------
    task : str
        A file in ``tasks/``, without ``.py``.
    settings : str
        The arguments of ``--set``, separated by spaces.
    epochs : int
        The number of epochs.
    floors : mapping of str to float
        The lowest value of each figure after the last epoch.
    device : {"cpu", "gpu"}
        The column.
    data : str
        The data set that it needs, a folder of that name in the folder of ``--data``; empty for none.
    precision : str
        The precision of the net.
    library : {"mxnet", "torch"}
        Whose net it is.
    """

    task: str
    settings: str
    epochs: int
    floors: Mapping[str, float]
    device: str = "cpu"
    data: str = ""
    precision: str = "float32"
    library: str = "mxnet"

    @property
    def name(self) -> str:
        """The name in reports."""
        lowered = "" if self.precision == "float32" else self.precision
        return " ".join(
            filter(None, [self.task, self.settings, self.data and f"dataset={self.data}", lowered])
        )


class Device(NamedTuple):
    """Where rows are trained: the arguments of the command line, and the columns of the table to train."""

    arguments: tuple[str, ...]
    columns: tuple[str, ...]


DEVICES = {
    "cpu": Device((), ("cpu",)),
    "gpu": Device(("--devices", "gpu:0"), ("gpu",)),
    "torch": Device(("--engine", "torch", "--devices", "cpu"), ("cpu",)),
    "cuda": Device(("--engine", "torch", "--devices", "cuda:0"), ("cpu", "gpu")),
}

FULL = (
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
    Row("segmentation", "model=tiny dataset=scenes", 8, {"val_seg.mIoU": 0.75}),
    Row("detection", "", 10, {"val_VOC.mAP": 0.95}),
    Row("detection", "base=resnet18_v1", 10, {"val_VOC.mAP": 0.95}),
    Row("sentiment", "model=birnn", 8, {"val_accuracy": 0.97}),
    Row("sentiment", "model=textcnn", 8, {"val_accuracy": 0.95}),
    Row("translation", "", 10, {"val_bleu": 0.95}),
    Row("translation", "model=transformer", 10, {"val_bleu": 0.90}),
    Row(
        "scenes",
        "",
        6,
        {"val_detection/VOC.mAP": 0.95, "val_segmentation/seg.mIoU": 0.85, "val_count/accuracy": 0.97},
    ),
    Row("two_digits", "", 12, {"val_left_accuracy": 0.80, "val_right_accuracy": 0.80}),
    Row("few_digits", "", 15, {"val_digit_accuracy": 0.80, "val_parity_accuracy": 0.97}),
    Row("diabetes", "", 30, {"val_progression_r2": 0.40, "val_pressure_r2": 0.28, "val_lipid_r2": 0.86}),
    Row("cells", "", 60, {"val_diagnosis_accuracy": 0.93, "val_texture_r2": 0.72, "val_smoothness_r2": 0.65}),
    Row("language", "", 10, {"val_text.saved": 0.31}),
    Row("dcgan", "", 40, {"val_score": 0.6}),
    Row("torch_digits", "", 15, {"val_digit_accuracy": 0.96}, library="torch"),
    Row("torch_scenes", "", 16, {"val_mIoU": 0.85, "val_count_accuracy": 0.95}, library="torch"),
    Row("classification", "model=resnet18", 5, {"val_accuracy": 0.99}, "gpu", "mnist"),
    Row("sentiment", "model=birnn length=200", 10, {"val_accuracy": 0.80}, "gpu", "imdb"),
    Row("detection", "base=resnet18_v1 size=320", 60, {"val_VOC.mAP": 0.30}, "gpu", "voc"),
    Row("segmentation", "model=fcn", 60, {"val_seg.mIoU": 0.10}, "gpu", "voc"),
)

# Those of nets whose layers bfloat16 concerns; the floors are those of float32
LOWERED = {
    "digits", "classification model=mlp", "classification model=lenet", "classification model=resnet18",
    "segmentation model=tiny", "detection",
}  # fmt: skip
ROWS = (*FULL, *(row._replace(precision="bfloat16") for row in FULL if row.name in LOWERED))
