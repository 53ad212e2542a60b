"""A PyTorch net for two tasks on scenes of handwritten digits: segment them, and count them.

The net is a ``torch.nn.Module``: a small U-Net, and a head at its deepest maps. Every third scene has no
mask, as if nobody had drawn it: its pixels count for nothing.
"""

import numpy as np
import torch
from data.images import displayed, normalize, read_images
from data.scenes import CLASSES, MOST, scenes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec

size = 64  # pixels of each side
train_count = 1440
val_count = 96
epochs = 16
batch_size = 16
learning_rate = 4e-3
count_weight = 0.2
UNKNOWN = -1  # the mask of a scene that has none


def block(channels, width):
    """Return two convolutions with batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
    )  # fmt: skip


class SceneNet(nn.Module):
    """A U-Net with four scales, and a head that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([block(3, 16), block(16, 32), block(32, 64), block(64, 64)])
        self.up = nn.ModuleList([block(64 + 64, 64), block(64 + 32, 32), block(32 + 16, 16)])
        self.scores = nn.Conv2d(16, len(CLASSES) + 1, 1)
        self.count = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, MOST + 1))

    def forward(self, image):
        """Return scores (N, 11, H, W) and counts (N, 5) for images (N, 3, H, W)."""
        maps, skips = self.down[0](image), []
        for stage in self.down[1:]:
            skips.append(maps)
            maps = stage(functional.max_pool2d(maps, 2))
        count = self.count(maps.mean(dim=(2, 3)))
        for stage, skip in zip(self.up, reversed(skips)):
            maps = stage(torch.cat([functional.interpolate(maps, scale_factor=2), skip], dim=1))
        return self.scores(maps), count


def net():
    """Return the net."""
    return SceneNet()


def spec():
    """Declare the losses and metrics of both tasks; a mask may be missing."""
    return TaskSpec(
        inputs=["image"],
        outputs=["mask", "count"],
        labels=[LabelSpec("mask", missing=UNKNOWN), "count"],
        losses={"mask": nn.CrossEntropyLoss(), "count": LossSpec(nn.CrossEntropyLoss(), weight=count_weight)},
        metrics={
            "mIoU": MetricSpec("mean_iou", outputs="mask", labels="mask"),
            "count_accuracy": MetricSpec("accuracy", outputs="count", labels="count"),
        },
    )


def trainers(data):
    """Return AdamW with one cycle of the learning rate."""
    steps = epochs * len(data[0])

    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)

    return TrainerSpec(".*", "adamw", {"lr": learning_rate}, lr_scheduler=one_cycle)


def data():
    """Return loaders of training scenes, of which every third has no mask, and of held-out ones."""
    train, val = scenes(train_count, size), scenes(val_count, size, held_out=True)
    train.mask[::3] = UNKNOWN
    loaders = []
    for images in (train, val):
        columns = normalize(images.image), images.mask.astype("int64"), images.count.astype("int64")
        loaders.append(TensorDataset(*map(torch.from_numpy, columns)))
    return DataLoader(loaders[0], batch_size, shuffle=True), DataLoader(loaders[1], batch_size)


def pictures(estimator, data):
    """Draw held-out scenes, each with its true mask and the predicted one, and its counts."""
    from matplotlib.figure import Figure

    image, mask, count = (tensor[:16].numpy() for tensor in data[1].dataset.tensors)
    outputs = estimator.predict(image)
    predicted, counted = outputs["mask"].argmax(axis=1), outputs["count"].argmax(axis=1)
    sheet = Figure(figsize=(10, 4.5), layout="constrained")
    sheet.suptitle("held-out scenes: the scene, the true mask, the predicted one; wrong counts are red")
    for i, scene in enumerate(displayed(image)):
        for column, picture in enumerate((scene, mask[i], predicted[i]), 1):
            axes = sheet.add_subplot(4, 12, 3 * i + column)
            draw(axes, picture)
        wrong = counted[i] != count[i]
        axes.set_title(f"{counted[i]} ({count[i]})", fontsize=8, color="tab:red" if wrong else "black")
    return {"samples": sheet}


def draw(axes, picture):
    """Draw a scene (H, W, 3), or a mask (H, W) with a colour for each class."""
    if picture.ndim == 3:
        axes.imshow(picture)
    else:
        axes.imshow(np.where(picture > 0, picture, np.nan), cmap="tab10", vmin=1, vmax=10)
        axes.set_facecolor("black")
    axes.set_xticks([])
    axes.set_yticks([])


def inputs(arguments):
    """Read image files."""
    return normalize(read_images(arguments, size))


def show(inputs, outputs):
    """Draw each image beside its mask, with its count."""
    from matplotlib.figure import Figure

    for i, scene in enumerate(displayed(inputs)):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw(left, scene)
        draw(right, outputs["mask"][i].argmax(axis=0))
        right.set_title(f"{outputs['count'][i].argmax()} digits")
        yield figure
