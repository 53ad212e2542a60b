"""One net for three tasks on scenes of handwritten digits: find them, segment them, count them.

The net is one body with three heads: gluoncv's SSD, the decoder of a segmentation net, and a softmax. The
spec combines those of ``detection.py`` and ``segmentation.py``. One trainer updates the body, another the
heads. For comparison, ``--set segmentation_weight=0 count_weight=0`` trains detection alone.
"""

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import detection
import mxnet as mx
import numpy as np
import segmentation
from data import ssd_targets
from data.images import displayed, first_samples, normalize, read_images
from data.scenes import CLASSES, MOST, scenes
from mxnet import gluon
from mxnet.gluon import nn
from parts.decoder import Decoder
from parts.drawing import confident, draw_boxes, draw_mask, named, title
from parts.pyramid import Pyramid
from parts.ssd import ssd_on

size = 128  # pixels of each side
train_count = 1260
val_count = 96
epochs = 6
batch_size = 8
body_rate = 2e-3
head_rate = 4e-3
detection_weight = 1.0
segmentation_weight = 3.0
count_weight = 1.0


class SceneNet(nn.HybridBlock):
    """A body and three heads that share its maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Pyramid()
        # This SSD gets the body's maps instead of an image, and passes them on to its heads.
        self.detection = ssd_on(nn.HybridLambda(lambda F, maps: maps), size, CLASSES)
        self.segmentation = Decoder(len(CLASSES) + 1)
        self.count = nn.HybridSequential()
        self.count.add(nn.GlobalAvgPool2D(), nn.Dense(64, activation="relu"), nn.Dense(MOST + 1))

    def hybrid_forward(self, F, image):
        """Return the SSD's outputs, scores (N, 11, H, W) and counts (N, 5) for images (N, 3, H, W)."""
        maps = self.body(image)
        return self.detection(maps[1:]), self.segmentation(*maps), self.count(maps[-1])


def net(context):
    """Return the net with the SSD's anchors, which the data need."""
    scene_net = SceneNet()
    scene_net.initialize(mx.init.Xavier(magnitude=2), ctx=context)
    scene_net.anchors = ssd_targets.anchors_of(lambda image: scene_net(image)[0], size, context[0])
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
    """Return a trainer for the body and a faster one for the heads; both learning rates fall to 0."""

    def adam(params, rate):
        scheduler = mx.lr_scheduler.PolyScheduler(epochs * len(data[0]), rate, pwr=0.9)
        return TrainerSpec(params, "adam", lr_scheduler=scheduler)

    return {
        "body": adam(net.body, body_rate),
        "heads": adam(r"(detection|segmentation|count)\..*", head_rate),
    }


def data(net):
    """Return loaders of images with the labels of all three tasks, and SSD's targets for training."""
    train, val = scenes(train_count, size), scenes(val_count, size, held_out=True)
    targets = ssd_targets.targets(net.anchors, train.boxes)
    train = gluon.data.ArrayDataset(normalize(train.image), *targets, train.mask, train.count)
    val = gluon.data.ArrayDataset(normalize(val.image), val.boxes, val.mask, val.count)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(estimator, data):
    """Draw eight held-out scenes with predicted boxes, masks and counts: right ones first, then by count."""
    from matplotlib.figure import Figure

    image, truth, mask, count = map(np.stack, zip(*first_samples(data[1], val_count)))
    outputs = estimator.predict(image)
    truths = [f"{number}: {named(boxes[:, 4], CLASSES)}" for number, boxes in zip(count, truth)]
    right = [answer(outputs, i) == text and traced(outputs, i, mask[i]) for i, text in enumerate(truths)]
    chosen = sorted(range(len(image)), key=lambda i: (not right[i], -count[i]))[:8]
    sheet = Figure(figsize=(10, 3.3), layout="constrained")
    sheet.suptitle("held-out scenes: count, digits and mask; the titles of wrong ones are red", fontsize=10)
    scene = displayed(image)
    for place, i in enumerate(chosen):
        places = [sheet.add_subplot(2, 8, 2 * place + column) for column in (1, 2)]
        draw(places, scene[i], outputs, i, truths[i])
    return {"scenes": sheet}


def answer(outputs, i):
    """Return what the net found in scene `i`: the count, and the digits."""
    return f"{outputs['count/count'][i].argmax()}: {named(confident(outputs, i, 'detection/')[1], CLASSES)}"


def traced(outputs, i, mask):
    """Return whether 95 % of the digits' pixels have the right class."""
    found = outputs["segmentation/scores"][i].argmax(axis=0)
    return (found == mask)[mask > 0].mean() > 0.95


def draw(places, scene, outputs, i, truth=None):
    """Draw the predictions for scene `i`: boxes and count in the first place, the mask in the second."""
    boxes, ids = confident(outputs, i, "detection/")
    draw_boxes(places[0], scene, boxes, ids, CLASSES)
    draw_mask(places[1], outputs["segmentation/scores"][i].argmax(axis=0))
    predicted = answer(outputs, i)
    wrong = truth not in (None, predicted)
    title(places[0], f"{predicted} (true: {truth})" if wrong else predicted, wrong)
    title(places[1], "")


def inputs(arguments):
    """Read image files."""
    return normalize(read_images(arguments, size))


def show(inputs, outputs):
    """Draw each image with boxes and count, beside its mask."""
    from matplotlib.figure import Figure

    for i, scene in enumerate(displayed(inputs)):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        draw(figure.subplots(1, 2), scene, outputs, i)
        yield figure
