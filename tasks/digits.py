"""Three predictions for a handwritten digit: which one it is, whether it is odd, how much ink it has.

Three heads share a body of three convolutions. Their losses are a softmax, a sigmoid and an L2 loss, with
weights. One trainer updates the body and one the heads. The data are scikit-learn's 1797 real digits, 8 by 8
pixels.
"""

import numpy as np
from mxnet import gluon, metric
from mxnet.gluon import nn

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.metrics import BinaryAccuracy

epochs = 20
batch_size = 64
body_rate = 2e-3
head_rate = 5e-3
parity_weight = 0.5
ink_weight = 0.5


class DigitNet(nn.HybridBlock):
    """Three convolutions and a dense layer, which three heads share."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(
            nn.Conv2D(32, 3, padding=1, activation="relu"),
            nn.Conv2D(32, 3, padding=1, activation="relu"),
            nn.MaxPool2D(),
            nn.Conv2D(64, 3, padding=1, activation="relu"),
            nn.Dense(128, activation="relu"),
        )
        self.digit, self.parity, self.ink = nn.Dense(10), nn.Dense(1), nn.Dense(1)

    def hybrid_forward(self, F, image):
        """Return the heads' outputs, (N, 10), (N, 1) and (N, 1), for images (N, 1, 8, 8)."""
        features = self.body(image)
        return self.digit(features), self.parity(features), self.ink(features)


def net():
    """Return the net; the estimator initialises it."""
    digit_net = DigitNet()
    digit_net.hybridize()
    return digit_net


def spec():
    """Declare outputs and labels, the losses with their weights, and the metrics."""
    return TaskSpec(
        inputs=["image"],
        outputs=["digit", "parity", "ink"],
        labels=["digit", "parity", "ink"],
        losses={
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "parity": LossSpec(gluon.loss.SigmoidBinaryCrossEntropyLoss(), weight=parity_weight),
            "ink": LossSpec(gluon.loss.L2Loss(), weight=ink_weight),
        },
        metrics={
            "digit_accuracy": MetricSpec(metric.Accuracy(), outputs="digit", labels="digit"),
            "parity_accuracy": MetricSpec(BinaryAccuracy(), outputs="parity", labels="parity"),
            "ink_error": MetricSpec(metric.MAE(), outputs="ink", labels="ink"),
        },
    )


def trainers(net):
    """Return a trainer for the body and a faster one for the heads."""
    return {
        "body": TrainerSpec(net.body, "adam", {"learning_rate": body_rate}),
        "heads": TrainerSpec(r"(digit|parity|ink)\..*", "adam", {"learning_rate": head_rate}),
    }


def data():
    """Return loaders of 1437 training digits and of the 360 others."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(digit))  # the same split for every seed
    image = pixels[order].reshape(-1, 1, 8, 8).astype("float32") / 16
    digit = digit[order].astype("int32")
    ink = image.mean(axis=(1, 2, 3)).reshape(-1, 1)
    columns = (image, digit, (digit % 2).astype("float32").reshape(-1, 1), (ink - ink.mean()) / ink.std())
    train, val = (gluon.data.ArrayDataset(*(c[part] for c in columns)) for part in np.s_[:1437, 1437:])
    return (
        gluon.data.DataLoader(train, batch_size, shuffle=True),
        gluon.data.DataLoader(val, batch_size),
    )


def pictures(estimator, data):
    """Draw 40 held-out digits with their predictions: the mistakes first, in red."""
    from matplotlib.figure import Figure

    slots = zip(*([slot.asnumpy() for slot in batch] for batch in data[1]))
    image, digit, parity, ink = map(np.concatenate, slots)
    outputs = estimator.predict(data[1])
    predicted, odd = outputs["digit"].argmax(axis=1), outputs["parity"][:, 0] > 0
    wrong = (predicted != digit) | (odd != (parity[:, 0] > 0))
    sheet = Figure(figsize=(10, 7.5), layout="constrained")
    sheet.suptitle(f"{len(wrong)} held-out digits, {wrong.sum()} with a mistake (red): predicted (true)")
    for place, i in enumerate(np.argsort(~wrong, kind="stable")[:40], 1):
        axes = sheet.add_subplot(5, 8, place)
        axes.imshow(image[i, 0], cmap="gray_r")
        axes.set_axis_off()
        axes.set_title(
            f"{predicted[i]} ({digit[i]}) {'odd' if odd[i] else 'even'}\n"
            f"ink {outputs['ink'][i, 0]:+.2f} ({ink[i, 0]:+.2f})",
            fontsize=8,
            color="tab:red" if wrong[i] else "black",
        )
    return {"samples": sheet}


def inputs(arguments):
    """Read image files with a digit each."""
    from data.mnist import read_digit

    return np.stack([read_digit(path, 8) for path in arguments])


def show(outputs):
    """Return for each image the digit, whether it is odd, and its ink."""
    rows = zip(outputs["digit"].argmax(axis=1), outputs["parity"][:, 0], outputs["ink"][:, 0])
    return [f"{digit}, {'odd' if odd > 0 else 'even'}, ink {ink:+.2f}" for digit, odd, ink in rows]
