"""Everything about a scene of handwritten digits with one net: where they are, their pixels, how many.

One body, three heads: gluoncv's SSD, the decoder of a segmentation net, a softmax; declared by the very specs
of ``detection.py`` and ``segmentation.py``, combined. One trainer moves the body, another one the heads.
``--set segmentation_weight=0 count_weight=0`` trains for detection alone, for comparison.
"""

from __future__ import annotations

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12 mxnet wants multifit first.
# isort: split
import detection
import mxnet as mx
import numpy as np
import segmentation
from data import anchored
from data.pictured import displayed, first_samples, normalized, read_images
from data.scenes import CLASSES, MOST, scenes
from mxnet import gluon
from mxnet.gluon import nn
from parts.decoder import Decoder
from parts.drawing import confident, draw_boxes, draw_mask, named, title
from parts.pyramid import Pyramid
from parts.ssd import ssd_on

size = 128  # pixels, of each side
train_count = 1440
val_count = 96
epochs = 10
batch_size = 8
body_rate = 1e-3
head_rate = 2e-3
detection_weight = 1.0
segmentation_weight = 2.0
count_weight = 1.0


class SceneNet(nn.HybridBlock):
    """A body and three heads on its maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Pyramid()
        # The SSD gets maps where it expects an image, and passes them on to its heads.
        self.detection = ssd_on(nn.HybridLambda(lambda F, maps: maps), size, CLASSES)
        self.segmentation = Decoder(len(CLASSES) + 1)
        self.count = nn.HybridSequential()
        self.count.add(nn.GlobalAvgPool2D(), nn.Dense(64, activation="relu"), nn.Dense(MOST + 1))

    def hybrid_forward(self, F, image):
        """Return what the SSD returns, scores (N, 11, H, W) and counts (N, 5) for images (N, 3, H, W)."""
        maps = self.body(image)
        return self.detection(maps[1:]), self.segmentation(*maps), self.count(maps[-1])


def net(context):
    """Return the net, with the SSD's anchors, which the data need."""
    scene_net = SceneNet()
    scene_net.initialize(mx.init.Xavier(magnitude=2), ctx=context)
    scene_net.anchors = anchored.anchors_of(lambda image: scene_net(image)[0], size, context[0])
    scene_net.hybridize()
    return scene_net


def spec(net):
    """Combine the specs of the single tasks."""
    return TaskSpec.combine(
        detection=detection.spec(net.detection, detection_weight),
        segmentation=segmentation.spec(net.segmentation, segmentation_weight),
        count=TaskSpec(
            inputs=["image"],
            outputs="count",
            labels=["count"],
            losses={"count": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), weight=count_weight)},
            metrics={"accuracy": MetricSpec(mx.metric.Accuracy(), outputs="count", labels="count")},
        ),
        shared=["image"],
    )


def trainers(net, data):
    """Let both learning rates fall to 0 over the epochs; the body learns more slowly than the heads."""

    def falling(rate):
        return mx.lr_scheduler.PolyScheduler(epochs * len(data[0]), rate, pwr=0.9)

    return {
        "body": TrainerSpec(net.body, "adam", lr_scheduler=falling(body_rate)),
        "heads": TrainerSpec(r"(detection|segmentation|count)\..*", "adam", lr_scheduler=falling(head_rate)),
    }


def data(net):
    """Return loaders of images with the labels of all three tasks; SSD's targets were made once."""
    train, val = scenes(train_count, size), scenes(val_count, size, held_out=True)
    targets = anchored.targets(net.anchors, train.boxes)
    train = gluon.data.ArrayDataset(normalized(train.image), *targets, train.mask, train.count)
    val = gluon.data.ArrayDataset(normalized(val.image), val.boxes, val.mask, val.count)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(estimator, data):
    """Draw held-out scenes with boxes, masks and counts; a title is red where one of these is wrong."""
    from matplotlib.figure import Figure

    image, truth, _, count = map(np.stack, zip(*first_samples(data[1], 16)))
    found = estimator.predict(image)
    sheet = Figure(figsize=(14, 8.5), layout="constrained")
    sheet.suptitle(
        "held-out scenes: what the net counts and finds (what is there), and the pixels of each digit"
    )
    for i, scene in enumerate(displayed(image)):
        places = [sheet.add_subplot(4, 8, 2 * i + column) for column in (1, 2)]
        digits = named(truth[i, :, 4], CLASSES)
        draw(places, scene, found, i, truth=f"{count[i]}: {digits}")
    return {"scenes": sheet}


def draw(places, scene, found, i, truth=None):
    """Draw what was found in scene `i`: its boxes and count in the first place, its mask in the second."""
    boxes, ids = confident(found, i, "detection/")
    said = f"{found['count/count'][i].argmax()}: {named(ids, CLASSES)}"
    draw_boxes(places[0], scene, boxes, ids, CLASSES)
    draw_mask(places[1], found["segmentation/scores"][i].argmax(axis=0))
    title(places[0], said if truth is None else f"{said} ({truth})", wrong=truth not in (None, said))
    title(places[1], "")


def inputs(arguments):
    """Read image files."""
    return normalized(read_images(arguments, size))


def show(inputs, outputs):
    """Draw each image with boxes and count, beside its mask."""
    from matplotlib.figure import Figure

    for i, scene in enumerate(displayed(inputs)):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        draw(figure.subplots(1, 2), scene, outputs, i)
        yield figure
