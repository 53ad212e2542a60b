"""gluoncv's YOLOv3: in training it takes its targets as inputs and returns its own losses."""

from __future__ import annotations

import numpy as np
import pytest

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform  # isort: skip
from gluoncv.model_zoo import yolo3_mobilenet0_25_custom  # isort: skip
from gluoncv.utils.metrics import VOC07MApMetric  # isort: skip

SIDE = 64
CLASSES = ("bright", "dark")
LOSSES = ("objectness_loss", "center_loss", "scale_loss", "class_loss")
TARGETS = ("objectness", "centers", "scales", "weights", "classes")


def yolo():
    """Return a small YOLOv3, initialised, whose shapes are all known."""
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


def spec():
    return TaskSpec(
        inputs=["image", "boxes", *TARGETS],
        outputs=LOSSES,
        batch=["image", *TARGETS, "boxes"],
        losses={name: LossSpec() for name in LOSSES},
        evaluate=TaskSpec(
            inputs=["image"],
            outputs=["ids", "scores", "boxes"],
            labels=["truth"],
            metrics={
                "VOC": MetricSpec(
                    VOC07MApMetric(class_names=CLASSES),
                    outputs=["boxes", "ids", "scores"],
                    labels="truth",
                    transform=lambda boxes, ids, scores, truth: (
                        boxes,
                        ids,
                        scores,
                        truth[..., :4],
                        truth[..., 4:5],
                    ),
                    mode="max",
                )
            },
        ),
    )


@pytest.mark.parametrize("hybridized", [False, True])
def test_it_moves_as_in_a_loop_by_hand(hybridized):
    ours, by_hand = yolo(), yolo()
    batches = train_batches(ours)
    if hybridized:
        ours.hybridize()
    MultiEstimator(ours, spec(), TrainerSpec(".*", "sgd", {"learning_rate": 1e-3})).fit(batches, epochs=2)

    trainer = mx.gluon.Trainer(by_hand.collect_params(), "sgd", {"learning_rate": 1e-3})
    for _ in range(2):
        (image, *targets, boxes), count = batches[0], len(batches[0][0])
        with mx.autograd.record():
            losses = by_hand(image, boxes, *targets)
            total = sum(loss.sum() for loss in losses)
        total.backward()
        trainer.step(count)
    other = by_hand._collect_params_with_prefix()
    for name, parameter in ours._collect_params_with_prefix().items():
        expected = other[name].data().asnumpy()
        np.testing.assert_allclose(parameter.data().asnumpy(), expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_training_and_detecting_in_turn():
    net = yolo()
    net.hybridize()
    estimator = MultiEstimator(net, spec(), TrainerSpec(".*", "adam", {"learning_rate": 1e-3}))
    history = estimator.fit(train_batches(net), val_batches(), epochs=4)
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert history["train_loss"][0] == pytest.approx(sum(history[f"train_{name}"][0] for name in LOSSES))
    assert all(0 <= value <= 1 for value in history["val_VOC.mAP"])
    found = estimator.predict(val_batches()[0][0])
    assert found["ids"].shape[0] == 4 and found["boxes"].shape[2] == 4
