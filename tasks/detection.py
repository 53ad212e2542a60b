"""Which digits are where? gluoncv's SSD on scenes of real handwritten digits.

``--set base=resnet18_v1`` uses a ResNet as the body, ``dataset=shapes`` generated shapes, and
``dataset=voc root=VOCdevkit base=resnet18_v1 size=320`` PASCAL VOC with SSD's augmentation.
"""

from __future__ import annotations

from typing import Literal

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import mxnet as mx
import numpy as np
from data import scenes, shapes, ssd_targets, voc
from data.images import displayed, first_samples, normalize, read_images
from gluoncv.data.batchify import Pad, Stack, Tuple
from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform, SSDDefaultValTransform
from gluoncv.loss import SSDMultiBoxLoss
from gluoncv.utils.metrics.voc_detection import VOC07MApMetric
from mxnet import gluon
from parts.drawing import confident, draw_boxes, named, title
from parts.ssd import Tiny, ssd_on

base: Literal["tiny", "resnet18_v1"] = "tiny"
dataset: Literal["scenes", "shapes", "voc"] = "scenes"
root = ""  # for dataset=voc: its folder
size = 128  # pixels of each side
train_count = 1440  # generated images
val_count = 96
epochs = 10
batch_size = 16
learning_rate = 1e-3

SOURCES = {"scenes": scenes.scenes, "shapes": shapes.shapes}
CLASSES = {"scenes": scenes.CLASSES, "shapes": shapes.CLASSES, "voc": voc.CLASSES}


def net(context):
    """Return the SSD with its anchors, which the data need."""
    ssd = ssd_on(Tiny() if base == "tiny" else base, size, CLASSES[dataset])
    ssd.initialize(mx.init.Xavier(magnitude=2), ctx=context)
    ssd.anchors = ssd_targets.anchors_of(ssd, size, context[0])  # before the SSD is hybridized
    ssd.hybridize()
    return ssd


def spec(net, weight=1.0):
    """Declare gluoncv's loss over all devices for training, and the boxes' mAP for evaluation."""
    return TaskSpec(
        inputs=["image"],
        outputs=["cls_preds", "box_preds", "anchors"],
        labels=["cls_targets", "box_targets"],
        losses={
            "multibox": LossSpec(
                SSDMultiBoxLoss(),
                outputs=["cls_preds", "box_preds"],
                labels=["cls_targets", "box_targets"],
                returns=["sum", "cls", "box"],
                weight=weight,
            )
        },
        unused=["anchors"],
        evaluate=TaskSpec(
            inputs=["image"],
            outputs=["ids", "scores", "boxes"],
            labels=["truth"],
            metrics={
                "VOC": MetricSpec(
                    VOC07MApMetric(iou_thresh=0.5, class_names=net.classes),
                    outputs=["boxes", "ids", "scores"],
                    labels="truth",
                    transform=_as_voc,
                    mode="max",
                )
            },
        ),
    )


def _as_voc(boxes, ids, scores, truth):
    return boxes, ids, scores, truth[:, :, :4], truth[:, :, 4:5], truth[:, :, 5:6]


def trainers(data):
    """Return Adam whose learning rate is divided by ten after 70 % of the training."""
    step = max(1, int(0.7 * epochs * len(data[0])))
    scheduler = mx.lr_scheduler.MultiFactorScheduler([step], factor=0.1, base_lr=learning_rate)
    return TrainerSpec(".*", "adam", lr_scheduler=scheduler)


def data(net):
    """Return loaders of training images with SSD's targets, and of held-out images with boxes."""
    if dataset == "voc":
        return _voc(net)
    train, val = SOURCES[dataset](train_count, size), SOURCES[dataset](val_count, size, held_out=True)
    targets = ssd_targets.targets(net.anchors, train.boxes)
    train = gluon.data.ArrayDataset(normalize(train.image), *targets)
    val = gluon.data.ArrayDataset(normalize(val.image), val.boxes)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def _voc(net):
    """Return loaders that read images; training images are augmented, and get new targets, each time."""
    train, val = voc.detection(root)
    anchors = net.anchors.as_in_context(mx.cpu())
    train = train.transform(SSDDefaultTrainTransform(size, size, anchors))
    val = val.transform(SSDDefaultValTransform(size, size))
    return (
        gluon.data.DataLoader(train, batch_size, shuffle=True, batchify_fn=Tuple(Stack(), Stack(), Stack())),
        gluon.data.DataLoader(val, batch_size, batchify_fn=Tuple(Stack(), Pad(pad_val=-1))),
    )


def pictures(estimator, data, net):
    """Draw 16 held-out images with the predicted boxes; the title of a wrong one is red."""
    from matplotlib.figure import Figure

    image, truth = zip(*first_samples(data[1], 16))
    image = np.stack(image)
    outputs = estimator.predict(image)
    sheet = Figure(figsize=(10, 10.5), layout="constrained")
    sheet.suptitle("held-out images: predicted (true) objects")
    for i, pixels in enumerate(displayed(image)):
        boxes, ids = confident(outputs, i)
        axes = sheet.add_subplot(4, 4, i + 1)
        draw_boxes(axes, pixels, boxes, ids, net.classes)
        predicted, true = named(ids, net.classes), named(truth[i][:, 4], net.classes)
        title(axes, f"{predicted} ({true})", wrong=predicted != true)
    return {"samples": sheet}


def inputs(arguments):
    """Read image files."""
    return normalize(read_images(arguments, size))


def show(inputs, outputs, net):
    """Draw each image with the predicted boxes."""
    from matplotlib.figure import Figure

    for i, image in enumerate(displayed(inputs)):
        figure = Figure(figsize=(5, 5.3), layout="constrained")
        axes = figure.add_subplot()
        boxes, ids = confident(outputs, i)
        draw_boxes(axes, image, boxes, ids, net.classes)
        title(axes, named(ids, net.classes))
        yield figure
