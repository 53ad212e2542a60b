"""gluoncv's YOLOv3: in training it takes its targets as inputs and returns its own losses."""

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters
from tests.common.hand_loop import trainer_of

import mxnet as mx  # isort: skip
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform  # isort: skip
from gluoncv.model_zoo import yolo3_mobilenet0_25_custom  # isort: skip
from gluoncv.utils.metrics import VOC07MApMetric  # isort: skip

SIDE = 64
CLASSES = ("bright", "dark")
LOSSES = ("objectness_loss", "center_loss", "scale_loss", "class_loss")
TARGETS = ("objectness", "centers", "scales", "weights", "classes")


def yolo():
    """Return a small YOLOv3 whose shapes are all known."""
    mx.random.seed(0)
    net = yolo3_mobilenet0_25_custom(classes=CLASSES, pretrained_base=False)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, SIDE, SIDE)))
    return net


def pictures(count):
    """Return grey images (H, W, 3), each with a bright or a dark square, and the squares' boxes (1, 5)."""
    random = np.random.RandomState(0)
    for number in range(count):
        image = np.full((SIDE, SIDE, 3), 128, "uint8")
        left, top = random.randint(4, 28, 2)
        image[top : top + 28, left : left + 28] = (230, 20)[number % 2]
        yield image, np.array([[left, top, left + 28, top + 28, number % 2]], "float32")


def train_batches(net, count=4):
    """Return one batch, as gluoncv's own transform prepares it: the targets, then the boxes."""
    transform = YOLO3DefaultTrainTransform(SIDE, SIDE, net)
    samples = [transform(mx.nd.array(image), boxes) for image, boxes in pictures(count)]
    return [tuple(mx.nd.stack(*slot) for slot in zip(*samples))]


def val_batches(count=4):
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    images, boxes = zip(*pictures(count))
    image = ((np.stack(images) / 255 - mean) / deviation).transpose(0, 3, 1, 2).astype("float32")
    return [(mx.nd.array(image), mx.nd.array(np.stack(boxes)))]


def detections(boxes, ids, scores, truth):
    """Arrange outputs and labels as gluoncv's metric takes them."""
    return boxes, ids, scores, truth[..., :4], truth[..., 4:5]


def spec():
    outputs, metric = ["boxes", "ids", "scores"], VOC07MApMetric(class_names=CLASSES)
    metric = MetricSpec(metric, outputs, "truth", transform=detections, mode="max")
    return TaskSpec(
        inputs=["image", "boxes", *TARGETS],
        outputs=LOSSES,
        batch=["image", *TARGETS, "boxes"],
        losses={name: LossSpec() for name in LOSSES},
        evaluate=TaskSpec(
            inputs=["image"],
            outputs=["ids", "scores", "boxes"],
            labels=["truth"],
            metrics={"VOC": metric},
        ),
    )


def test_it_trains_as_in_a_loop_by_hand_and_detects_in_turn():
    net, by_hand = yolo(), yolo()
    batches = train_batches(net)
    net.hybridize()
    estimator = MultiEstimator(net, spec(), TrainerSpec(".*", "sgd", {"learning_rate": 1e-3}))
    history = estimator.fit(batches, val_batches(), epochs=2)

    trainer = trainer_of(by_hand, options={"learning_rate": 1e-3})
    image, *targets, boxes = batches[0]
    for _ in range(2):
        with mx.autograd.record():
            total = sum(loss.sum() for loss in by_hand(image, boxes, *targets))
        total.backward()
        trainer.step(len(image))
    assert_same_parameters(net, by_hand)
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert history["train_loss"][0] == pytest.approx(sum(history[f"train_{name}"][0] for name in LOSSES))
    assert all(0 <= value <= 1 for value in history["val_VOC.mAP"])
    outputs = estimator.predict(val_batches()[0][0])
    assert outputs["ids"].shape[0] == 4 and outputs["boxes"].shape[2] == 4
