"""Image augmentation: a small ResNet tells patches of two photographs apart.

Gluon's transforms crop, mirror and tint each training patch differently in every epoch; the learning rate
follows a cosine. ``--set augmented=False`` shows what the augmentation is worth.
"""

import numpy as np

from multifit import Interpretation, MetricSpec, TaskSpec, TrainerSpec

from mxnet import gluon, lr_scheduler, metric  # isort: skip
from mxnet.gluon.model_zoo import vision  # isort: skip

epochs = 12
batch_size = 32
rate = 0.05
augmented = True
side = 32
train_patches = 800
val_patches = 400


def net():
    """Return a ResNet18 for thumbnails, at a quarter of its width; the estimator initialises it."""
    resnet = vision.ResNetV1(
        vision.BasicBlockV1, [2, 2, 2, 2], [16, 16, 32, 64, 128], classes=2, thumbnail=True
    )
    resnet.hybridize()
    return resnet


def spec():
    """Declare the loss and the metric."""
    return TaskSpec(
        inputs=["image"],
        outputs=["kind"],
        labels=["kind"],
        losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss()},
        metrics={"accuracy": MetricSpec(metric.Accuracy(), outputs="kind", labels="kind")},
    )


def trainers():
    """Return SGD whose learning rate falls along a cosine to a hundredth."""
    steps = epochs * -(-train_patches // batch_size)
    schedule = lr_scheduler.CosineScheduler(steps, base_lr=rate, final_lr=rate / 100)
    return TrainerSpec(".*", "sgd", {"momentum": 0.9, "wd": 1e-4}, lr_scheduler=schedule)


def data():
    """Return loaders: augmented patches of the left halves, and unchanged patches of the right halves."""
    from data.patches import augmentation, patches, plain

    train = patches(train_patches, side).transform_first(augmentation(side) if augmented else plain())
    val = patches(val_patches, side, held_out=True).transform_first(plain(), lazy=False)
    return gluon.data.DataLoader(train, batch_size, shuffle=True), gluon.data.DataLoader(val, batch_size)


def pictures(estimator, data):
    """Draw the confusion matrix, and patches as the net sees them in eight epochs."""
    from data.patches import KINDS, augmentation, displayed, patches
    from parts.contact_sheet import contact_sheet

    found = Interpretation()
    estimator.evaluate(data[1], event_handlers=[found])
    augment = augmentation(side)
    rows = [
        [image.asnumpy() / 255, *(displayed(augment(image)) for _ in range(8))]
        for image, _ in patches(6, side)
    ]
    return {
        **found.plots({"kind": KINDS}),
        "augmented": contact_sheet(rows, "a patch (left), and as the net sees it in eight epochs"),
    }


def inputs(arguments):
    """Read the central squares of image files."""
    from data.patches import plain, read_photograph

    return np.stack([plain()(read_photograph(path, side)).asnumpy() for path in arguments])


def show(outputs):
    """Return the photograph that each image resembles, with the probability."""
    from data.patches import KINDS

    second = 1 / (1 + np.exp(outputs["kind"][:, 0] - outputs["kind"][:, 1]))  # probability of the second kind
    return [f"{KINDS[int(p > 0.5)]} ({max(p, 1 - p):.2f})" for p in second]
