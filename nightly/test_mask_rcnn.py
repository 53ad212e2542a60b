"""gluoncv's Mask R-CNN, made small, trains as its script does."""

from typing import Any

import numpy as np

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.compare import assert_same_parameters, copy_parameters
from tests.common.hand_loop import SILENT, train_by_hand, trainer_of
from tests.common.handlers import handler
from tests.common.nets import sequential
from tests.common.specs import BCE, CE

import mxnet as mx  # isort: skip
from gluoncv.model_zoo import MaskRCNN  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

RANDOM = np.random.RandomState(0)
SAMPLES, SIDE, CLASSES = 2, 64, ("cat", "dog", "cow")
SLOW = {"learning_rate": 1e-3}


def real(*shape: int) -> np.ndarray:
    """Return normally distributed numbers for each sample."""
    return RANDOM.randn(SAMPLES, *shape).astype("float32")


def whole(least: int, above: int, *shape: int) -> np.ndarray:
    """Return whole numbers for each sample."""
    return RANDOM.randint(least, above, (SAMPLES, *shape)).astype("float32")


def body(channels: int = 8) -> Any:
    """Return features at a sixteenth of the resolution."""
    return sequential(*[nn.Conv2D(channels, 4, 4, activation="relu") for _ in range(2)])


RCNN = {
    "classes": CLASSES, "roi_size": (4, 4), "strides": 16, "rpn_channel": 8, "scales": (1, 2),
    "alloc_size": (8, 8), "rpn_train_pre_nms": 96, "rpn_train_post_nms": 16, "num_sample": 8,
    "per_device_batch_size": SAMPLES, "max_num_gt": 2, "rpn_min_size": 1,
}  # fmt: skip
TARGETS = ["rpn classes", "rpn boxes", "rpn masks"]
FASTER = ["classes", "boxes", "rois", "samples", "matches", "rpn scores", "rpn offsets", "anchors",
          "class targets", "box targets", "box masks", "indices"]  # fmt: skip
UNUSED = ["rois", "samples", "matches", "anchors", "indices"]
HUBER = gluon.loss.HuberLoss()


def _normalised(loss: Any) -> Any:
    """Divide a loss by the number of targets that are not ignored, as gluoncv's scripts do."""

    def function(output: Any, targets: Any, valid: Any, counted: Any) -> Any:
        return loss(output, targets, valid) * output.size / (counted >= 0).sum()

    return function


def _ignoring(loss: Any) -> Any:
    def function(output: Any, targets: Any) -> Any:
        valid = targets >= 0
        weight = valid if output.ndim == targets.ndim else valid.expand_dims(-1)
        return loss(output, targets, weight) * targets.size / valid.sum()

    return function


RCNN_LOSSES = {
    "rpn classes": LossSpec(_ignoring(BCE), "rpn scores", "rpn classes"),
    "rpn boxes": LossSpec(_normalised(HUBER), "rpn offsets", ["rpn boxes", "rpn masks", "rpn classes"]),
    "classes": LossSpec(_ignoring(CE), ["classes", "class targets"]),
    "boxes": LossSpec(_normalised(HUBER), ["boxes", "box targets", "box masks", "class targets"]),
}


def _scene() -> tuple[np.ndarray, ...]:
    """Return images, two boxes in each, their classes, and targets of the region proposals."""
    corner = whole(0, 24, 2, 2)
    boxes = np.concatenate([corner, corner + whole(16, 40, 2, 2)], axis=2)
    return real(3, SIDE, SIDE), boxes, whole(0, 3, 2, 1), whole(-1, 2, 96, 1), real(96, 4), whole(0, 2, 96, 4)


def _sum_of(terms: dict[str, LossSpec], named: dict[str, Any]) -> Any:
    """Return the sum of the losses, by hand."""
    total = 0
    for term in terms.values():
        arguments = [term.outputs] if isinstance(term.outputs, str) else term.outputs
        labels = [term.labels] if isinstance(term.labels, str) else term.labels or []
        total = total + term.fn(*[named[name] for name in arguments], *[named[name] for name in labels])
    return total


INPUTS = ["image", "true boxes", "true classes"]


def test_masks_of_region_proposals() -> None:
    """Mask R-CNN, He et al., 2017: the targets of the masks follow from the net's own regions."""

    def forward(net: Any, slots: Any) -> Any:
        outputs = net(*[slots[name] for name in INPUTS])
        masks, rois, matches, classes, chosen = (outputs[at] for at in (2, 3, 5, 9, 12))
        targets, counted = net.mask_target(rois, slots["true masks"], matches, classes)
        rows = [[mx.nd.take(each[i], chosen[i]) for i in range(SAMPLES)] for each in (targets, counted)]
        return *outputs[:2], *outputs[3:], masks, *[mx.nd.stack(*each) for each in rows]

    outputs = [*FASTER, "masks", "mask targets", "mask weights"]
    terms = {**RCNN_LOSSES, "masks": LossSpec(BCE, ["masks", "mask targets", "mask weights"])}
    spec = TaskSpec(inputs=[*INPUTS, "true masks"], outputs=outputs, labels=TARGETS, forward=forward,
                    losses=terms, unused=UNUSED)  # fmt: skip

    def make() -> Any:
        return MaskRCNN(body(), nn.Conv2D(8, 3, padding=1), mask_channels=8, target_roi_scale=2, **RCNN)

    def objective(net: Any, *arrays: Any) -> Any:
        named = dict(zip([*INPUTS, "true masks", *TARGETS], arrays))
        return _sum_of(terms, {**named, **dict(zip(outputs, forward(net, named)))})

    def batch() -> tuple[np.ndarray, ...]:
        scene = _scene()
        return *scene[:3], whole(0, 2, 2, SIDE, SIDE), *scene[3:]

    batches = [batch() for _ in range(3)]
    hand, net = make(), make()
    for each in (hand, net):  # which takes several images in training only
        each.initialize(mx.init.Xavier())
        with mx.autograd.record():
            each(*map(mx.nd.array, batches[0][:3]))
    copy_parameters(hand, net)
    first = [batches[0]]  # whose check draws proposals to train on, too

    def seeded(*arguments: Any) -> Any:
        mx.random.seed(1)
        if first:
            first.clear()
            with mx.autograd.train_mode():
                objective(*arguments)
        return objective(*arguments)

    train_by_hand(hand, trainer_of(hand, "sgd", SLOW), batches, seeded)
    seed = handler(batch_begin=lambda estimator: mx.random.seed(1))
    estimator = MultiEstimator(net, spec, TrainerSpec(".*", "sgd", SLOW))
    estimator.fit(batches, epochs=1, event_handlers=[*SILENT, seed])
    assert_same_parameters(net, hand)
