"""The class of each pixel: a fully convolutional net (FCN) on generated shapes.

``--set model=fcn`` uses gluoncv's heads, the auxiliary one included, on a dilated ResNet; ``dataset=scenes``
uses scenes of handwritten digits, and ``dataset=voc root=VOCdevkit model=fcn`` PASCAL VOC.
"""

from __future__ import annotations

from typing import Literal

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.losses import SegmentationCELoss

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import mxnet as mx
import numpy as np
from data import scenes, shapes, voc
from data.images import displayed, first_samples, normalize, read_images
from gluoncv.model_zoo import FCN
from gluoncv.model_zoo.fcn import _FCNHead
from gluoncv.model_zoo.segbase import SegBaseModel
from gluoncv.utils.metrics.segmentation import SegmentationMetric
from mxnet import gluon
from mxnet.gluon import nn
from parts.decoder import Decoder
from parts.drawing import draw_mask, title
from parts.pyramid import Pyramid

model: Literal["tiny", "fcn"] = "tiny"
backbone: Literal["resnet18", "resnet34", "resnet50", "resnet101"] = "resnet18"  # for model=fcn
dataset: Literal["shapes", "scenes", "voc"] = "shapes"
root = ""  # for dataset=voc: its folder
size = 0  # pixels of each side; 0: 64 for shapes, 128 for scenes, 256 for voc
train_count = 0  # generated images; 0: 240 shapes or 1440 scenes
val_count = 0  # 0: 60 shapes or 96 scenes
epochs = 15
batch_size = 8
learning_rate = 0.0  # 0: 4e-3 for tiny, 1e-3 for fcn
aux_weight = 0.2

SOURCES = {"shapes": shapes.shapes, "scenes": scenes.scenes}
COUNTS = {"shapes": (240, 60), "scenes": (1440, 96)}
SIZES = {"shapes": 64, "scenes": 128, "voc": 256}
RATES = {"tiny": 4e-3, "fcn": 1e-3}
CLASSES = {"shapes": shapes.CLASSES, "scenes": scenes.CLASSES, "voc": voc.CLASSES}


class TinyFCN(nn.HybridBlock):
    """A small body, and a decoder that enlarges its maps."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.nclass = classes
        self.body, self.head = Pyramid(), Decoder(classes)

    def hybrid_forward(self, F, image):
        """Return scores (N, classes, H, W) for images (N, 3, H, W)."""
        return self.head(*self.body(image))


class ResNetFCN(SegBaseModel):
    """gluoncv's FCN for any ResNet: the original's heads have widths that fit only the deep ResNets."""

    def __init__(self, classes: int) -> None:
        side = size or SIZES[dataset]
        super().__init__(classes, aux=True, backbone=backbone, crop_size=side, pretrained_base=False)
        width = 512 if backbone in ("resnet18", "resnet34") else 2048
        self.head, self.auxlayer = _FCNHead(width, classes), _FCNHead(width // 2, classes)

    hybrid_forward = FCN.hybrid_forward  # the scores, and the auxiliary scores from the layer before


def net(context):
    """Return the net, initialised."""
    fcn = {"tiny": TinyFCN, "fcn": ResNetFCN}[model](1 + len(CLASSES[dataset]))  # with the background
    fcn.initialize(mx.init.Xavier(magnitude=2), ctx=context)
    fcn.hybridize()
    return fcn


def spec(net, weight=1.0):
    """Declare the loss of the scores, and that of the auxiliary scores if the net has them."""
    loss, aux = SegmentationCELoss(), hasattr(net, "auxlayer")
    return TaskSpec(
        inputs=["image"],
        outputs=["scores", "aux"] if aux else "scores",
        labels=["mask"],
        losses={
            "pixels": LossSpec(loss, outputs="scores", labels="mask", weight=weight),
            **({"aux": LossSpec(loss, outputs="aux", labels="mask", weight=aux_weight)} if aux else {}),
        },
        metrics={
            "seg": MetricSpec(
                SegmentationMetric(net.nclass),
                outputs="scores",
                labels="mask",
                names=["pixAcc", "mIoU"],
                mode="max",
            )
        },
    )


def trainers(data):
    """Return Adam whose learning rate falls to 0 over the epochs."""
    steps, rate = epochs * len(data[0]), learning_rate or RATES[model]
    return TrainerSpec(".*", "adam", lr_scheduler=mx.lr_scheduler.PolyScheduler(steps, rate, pwr=0.9))


def data():
    """Return loaders of training and of held-out images with masks."""
    side = size or SIZES[dataset]
    if dataset == "voc":
        train, val = voc.segmentation(root, side)
    else:
        train, val = (
            gluon.data.ArrayDataset(normalize(images.image), images.mask)
            for images in (
                SOURCES[dataset](train_count or COUNTS[dataset][0], side),
                SOURCES[dataset](val_count or COUNTS[dataset][1], side, held_out=True),
            )
        )
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(estimator, data):
    """Draw held-out images, each with its true mask, the predicted one, and the wrong pixels."""
    from matplotlib.figure import Figure

    image, mask = map(np.stack, zip(*first_samples(data[1], 12)))
    predicted = estimator.predict(image)["scores"].argmax(axis=1)
    sheet = Figure(figsize=(12, 9), layout="constrained")
    sheet.suptitle("held-out images: the image, the true mask, the predicted one, and the wrong pixels (red)")
    for i, pixels in enumerate(displayed(image)):
        wrong = (predicted[i] != mask[i]) & (mask[i] >= 0)
        axes = [sheet.add_subplot(6, 8, 4 * i + column) for column in (1, 2, 3, 4)]
        axes[0].imshow(pixels)
        draw_mask(axes[1], mask[i])
        draw_mask(axes[2], predicted[i])
        axes[3].imshow(np.where(wrong[..., None], (214, 39, 40), pixels // 3))
        for place, text in zip(axes, ("image", "true", "predicted", f"{wrong.mean():.1%} wrong")):
            title(place, text)
    return {"samples": sheet}


def inputs(arguments):
    """Read image files."""
    return normalize(read_images(arguments, size or SIZES[dataset]))


def show(inputs, outputs):
    """Draw each image beside its predicted mask."""
    from matplotlib.figure import Figure

    for image, scores in zip(displayed(inputs), outputs["scores"]):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.imshow(image)
        title(left, "")
        mask = scores.argmax(axis=0)
        draw_mask(right, mask)
        classes = [CLASSES[dataset][number - 1] for number in np.unique(mask) if number > 0]
        title(right, ", ".join(classes) or "background only")
        yield figure
