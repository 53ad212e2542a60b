"""A variational autoencoder (Kingma and Welling, 2014): its label is its input, and one loss has no label."""

import pytest
from sklearn.datasets import load_digits

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec

from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Autoencoder(nn.HybridBlock):
    def __init__(self, pixels: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Dense(64, activation="relu")
        self.mean, self.log_variance = nn.Dense(latent), nn.Dense(latent)
        self.decoder = nn.HybridSequential()
        self.decoder.add(nn.Dense(64, activation="relu"), nn.Dense(pixels))

    def hybrid_forward(self, F, image):
        features = self.encoder(image)
        mean, log_variance = self.mean(features), self.log_variance(features)
        noise = F.random.normal_like(mean)
        return self.decoder(mean + F.exp(0.5 * log_variance) * noise), mean, log_variance


def divergence(mean, log_variance):
    """Return how far each sample's Gaussian is from the standard one, (N,)."""
    return -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(axis=1)


def reconstruction(logits, image):
    """Return each sample's cross entropy, summed over the pixels, (N,)."""
    return gluon.loss.SigmoidBinaryCrossEntropyLoss()(logits, image) * image.shape[1]


def spec(weight=1.0):
    return TaskSpec(
        inputs=["image"],
        outputs=["logits", "mean", "log_variance"],
        labels=["image"],
        losses={
            "reconstruction": LossSpec(reconstruction, outputs="logits", labels="image"),
            "divergence": LossSpec(divergence, outputs=["mean", "log_variance"], weight=weight),
        },
    )


def batches():
    pixels = nd.array(load_digits().data[:512] / 16)
    return [(pixels[start : start + 64],) for start in range(0, 512, 64)]


def test_it_learns_to_draw_digits():
    net = Autoencoder(64, 4)
    net.hybridize()

    def weight(state):
        return min(1.0, state.epoch / 40)  # a full divergence would win at once

    estimator = MultiEstimator(net, spec(weight), TrainerSpec(".*", "adam", {"learning_rate": 5e-3}))
    history = estimator.fit(batches(), batches()[:1], epochs=4)
    assert history["train_loss"][-1] < 0.75 * history["train_loss"][0]
    for stage in ("train", "val"):
        for epoch, loss in enumerate(history[f"{stage}_loss"]):
            parts = [history[f"{stage}_{name}"][epoch] for name in ("reconstruction", "divergence")]
            assert loss == pytest.approx(parts[0] + epoch / 40 * parts[1], rel=1e-4)
