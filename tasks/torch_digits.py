"""A PyTorch net with two heads: which digit an image shows, and how much ink it has.

The net is a ``torch.nn.Module``; nothing here needs MXNet. One trainer updates the body, another the heads.
The data are scikit-learn's 1797 real digits, 8 by 8 pixels.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

epochs = 15
batch_size = 64
body_rate = 2e-3
head_rate = 5e-3
ink_weight = 0.5


class DigitNet(nn.Module):
    """Three convolutions and a dense layer, which two heads share."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128), nn.ReLU(),
        )  # fmt: skip
        self.digit, self.ink = nn.Linear(128, 10), nn.Linear(128, 1)

    def forward(self, image):
        """Return scores (N, 10) and ink (N, 1) for images (N, 1, 8, 8)."""
        features = self.body(image)
        return {"digit": self.digit(features), "ink": self.ink(features)}


def net():
    """Return the net."""
    return DigitNet()


def spec():
    """Declare outputs and labels, the losses with their weights, and the metrics."""
    return TaskSpec(
        inputs=["image"],
        outputs=["digit", "ink"],
        labels=["digit", "ink"],
        losses={"digit": nn.CrossEntropyLoss(), "ink": LossSpec(nn.MSELoss(), weight=ink_weight)},
        metrics={
            "digit_accuracy": MetricSpec("accuracy", outputs="digit", labels="digit"),
            "ink_error": MetricSpec("mae", outputs="ink", labels="ink"),
        },
    )


def trainers():
    """Return a trainer for the body and a faster one for the heads."""
    return {
        "body": TrainerSpec(r"body\..*", "adamw", {"lr": body_rate}, clip_norm=1.0),
        "heads": TrainerSpec(r"(digit|ink)\..*", torch.optim.AdamW, {"lr": head_rate}),
    }


def data():
    """Return loaders of 1437 training digits and of the 360 others."""
    from sklearn.datasets import load_digits

    pixels, digit = map(torch.from_numpy, load_digits(return_X_y=True))
    order = torch.randperm(len(digit), generator=torch.Generator().manual_seed(0))  # the same for every seed
    image = pixels[order].reshape(-1, 1, 8, 8).float() / 16
    ink = image.mean(dim=(1, 2, 3))[:, None]
    columns = image, digit[order], (ink - ink.mean()) / ink.std()
    train, val = (
        TensorDataset(*(each[part] for each in columns)) for part in (slice(1437), slice(1437, None))
    )
    return DataLoader(train, batch_size, shuffle=True), DataLoader(val, batch_size)


def pictures(estimator, data):
    """Draw 40 held-out digits with their predictions: the mistakes first, in red."""
    from matplotlib.figure import Figure

    image, digit, ink = (tensor.numpy() for tensor in data[1].dataset.tensors)
    outputs = estimator.predict(data[1])
    predicted = outputs["digit"].argmax(axis=1)
    wrong = predicted != digit
    sheet = Figure(figsize=(10, 7.5), layout="constrained")
    sheet.suptitle(f"{len(wrong)} held-out digits, {wrong.sum()} with a mistake (red): predicted (true)")
    for place, i in enumerate((~wrong).argsort(kind="stable")[:40], 1):
        axes = sheet.add_subplot(5, 8, place)
        axes.imshow(image[i, 0], cmap="gray_r")
        axes.set_axis_off()
        text = f"{predicted[i]} ({digit[i]})\nink {outputs['ink'][i, 0]:+.2f} ({ink[i, 0]:+.2f})"
        axes.set_title(text, fontsize=8, color="tab:red" if wrong[i] else "black")
    return {"samples": sheet}
