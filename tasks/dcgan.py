"""Pictures of handwritten digits, generated from noise by a DCGAN (Radford et al. 2015, arXiv:1511.06434).

The generator and the discriminator have a trainer each. Each of the three losses is bound to one of these
trainers, so that nothing is detached by hand. The data are scikit-learn's 1797 real digits, 8 by 8 pixels. A
classifier judges the generated pictures: ``score`` is a tenth of the inception score (Salimans et al. 2016).
It is 1 if the classifier is certain of each picture and all ten digits are generated equally often. Held-out
real digits have a score of 0.91, and noise has 0.35.
"""

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn

epochs = 40
batch_size = 32
latent = 32  # random numbers that a picture is generated from
width = 32  # channels of the largest maps
generator_rate = 2e-3
discriminator_rate = 1e-3
generator_every = 1  # batches between two updates of the generator

EMPTY, FULL = -1, 1  # values of a pixel without ink, and of one full of ink


class Adversaries(nn.HybridBlock):
    """A generator of pictures (N, 1, 8, 8), and a discriminator that scores how real a picture is."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.HybridSequential(), nn.HybridSequential()
        self.generator.add(
            nn.Conv2DTranspose(2 * width, 2, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2DTranspose(width, 4, strides=2, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2DTranspose(width // 2, 4, strides=2, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.Conv2D(1, 3, padding=1, activation="tanh"),  # MXNet's Conv2DTranspose fails for one channel
        )
        self.discriminator.add(
            nn.Conv2D(width, 4, strides=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2D(2 * width, 4, strides=2, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.LeakyReLU(0.2),
            nn.Dense(1),
        )

    def hybrid_forward(self, F, noise, image):
        """Return scores (N, 1) of images (N, 1, 8, 8), and of pictures from noise (N, latent, 1, 1)."""
        return self.discriminator(image), self.discriminator(self.generator(noise))


class Judged(nn.HybridBlock):
    """The cross entropy of scores (N, 1) if all pictures are real, or if none is."""

    def __init__(self, real: bool) -> None:
        super().__init__()
        self.sign = -1 if real else 1

    def hybrid_forward(self, F, score):
        """Return the losses (N, 1)."""
        return F.Activation(self.sign * score, act_type="softrelu")


def net():
    """Return the net; the estimator initialises it."""
    adversaries = Adversaries()
    adversaries.hybridize()
    return adversaries


def initializer():
    """Return the paper's initialisation."""
    return mx.init.Normal(0.02)


def spec():
    """Declare the losses with the trainers that they train, and how pictures are generated and judged."""
    real, made = Judged(True), Judged(False)
    real.hybridize()
    made.hybridize()
    return TaskSpec(
        inputs=["noise", "image"],
        outputs=["real", "made"],
        losses={
            "real": LossSpec(real, "real", trainers="discriminator"),
            "made": LossSpec(made, "made", trainers="discriminator"),
            "fool": LossSpec(real, "made", trainers="generator"),
        },
        evaluate=TaskSpec(
            inputs=["noise"],
            outputs="picture",
            forward=lambda net, slots: net.generator(slots["noise"]),
            metrics={"score": MetricSpec(judge(), outputs="picture", mode="max")},
        ),
    )


def trainers():
    """Return a trainer for the generator and one for the discriminator."""
    return {
        "generator": TrainerSpec(
            "generator.*", "adam", {"learning_rate": generator_rate, "beta1": 0.5}, every=generator_every
        ),
        "discriminator": TrainerSpec(
            "discriminator.*", "adam", {"learning_rate": discriminator_rate, "beta1": 0.5}
        ),
    }


def digits():
    """Return the training digits as images (1437, 1, 8, 8) from -1 to 1, and which digit each of them is."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(digit))[:1437]  # as in digits.py
    return pixels[order].reshape(-1, 1, 8, 8).astype("float32") / 8 + EMPTY, digit[order]


def data():
    """Return loaders: digits with new noise in every epoch, and noise to generate 360 pictures from."""
    train = gluon.data.ArrayDataset(digits()[0]).transform(lambda image: (noise_of(np.random), image))
    val = np.stack([noise_of(np.random.RandomState(i)) for i in range(360)])
    return gluon.data.DataLoader(train, batch_size, shuffle=True, last_batch="discard"), [val]


def noise_of(random):
    """Return noise (latent, 1, 1) to generate a picture from."""
    return random.standard_normal((latent, 1, 1)).astype("float32")


def judge():
    """Return a tenth of the inception score, as a function of pictures (N, 1, 8, 8)."""
    from sklearn.neighbors import KNeighborsClassifier

    images, digit = digits()
    classifier = KNeighborsClassifier(10, weights="distance").fit(images.reshape(-1, 64), digit)

    def score(labels, picture):
        each = classifier.predict_proba(picture.reshape(-1, 64)) + 1e-12
        information = (each * np.log(each / each.mean(axis=0))).sum(axis=1).mean()
        return np.exp(information) / 10

    return score


def pictures(estimator, data):
    """Draw generated pictures, and real digits below."""
    from parts.contact_sheet import contact_sheet

    made = estimator.predict(data[1])["picture"][:60]
    rows = [*made.reshape(5, 12, 8, 8), *digits()[0][:24].reshape(2, 12, 8, 8)]
    sheet = [[as_paper(picture) for picture in row] for row in rows]
    return {"samples": contact_sheet(sheet, "five rows of pictures that were made, and two of real digits")}


def as_paper(picture):
    """Return a picture (8, 8) as an image (8, 8, 3) of black ink on white paper."""
    return np.repeat((FULL - picture[..., None]) / 2, 3, axis=-1)


def inputs(arguments):
    """Return noise for each number on the command line, which is its seed."""
    return np.stack([noise_of(np.random.RandomState(int(number))) for number in arguments])


def show(outputs):
    """Draw the picture that was generated from each number's noise."""
    from parts.contact_sheet import contact_sheet

    for picture in outputs["picture"]:
        yield contact_sheet([[as_paper(picture[0])]], "")
