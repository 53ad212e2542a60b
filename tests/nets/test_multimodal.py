"""A multi-modal net: an image and a text, and an answer that needs both."""

import numpy as np

from multifit import LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

WORDS = ("is", "it", "bright", "dark", "really")


class Answering(nn.HybridBlock):
    """A convolution for the image, a GRU for the question, and two heads on both."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = nn.HybridSequential()
        self.eye.add(nn.Conv2D(8, 3, activation="relu"), nn.GlobalAvgPool2D(), nn.Flatten())
        self.word, self.ear = nn.Embedding(len(WORDS), 8), gluon.rnn.GRU(16, layout="NTC")
        self.mind = nn.Dense(32, activation="relu")
        self.answer, self.light = nn.Dense(2), nn.Dense(1)

    def hybrid_forward(self, F, image, question):
        seen, heard = self.eye(image), F.mean(self.ear(self.word(question)), axis=1)
        thought = self.mind(F.concat(seen, heard, dim=1))
        return self.answer(thought), self.light(seen)


def batches(count=256, seed=0):
    """Return batches: image, question, whether the answer is yes, and the image's brightness."""
    random = np.random.RandomState(seed)
    light, asked = random.randint(0, 2, (2, count))
    image = light.reshape(-1, 1, 1, 1) + 0.1 * random.randn(count, 1, 8, 8)
    question = np.array([[0, 1, 2 if bright else 3] for bright in asked])
    slots = image, question, (light == asked).astype("int32"), image.mean(axis=(2, 3))
    types = "float32", "int32", "int32", "float32"
    columns = [nd.array(slot, dtype=dtype) for slot, dtype in zip(slots, types)]
    return [tuple(column[start : start + 32] for column in columns) for start in range(0, count, 32)]


def spec():
    return TaskSpec(
        inputs=["image", "question"],
        outputs=["answer", "light"],
        labels=["answer", "light"],
        losses={
            "answer": CE,
            "light": LossSpec(L2, weight=0.1),
        },
        metrics={"accuracy": MetricSpec(mx.metric.Accuracy(), outputs="answer", labels="answer")},
    )


def test_it_answers_what_neither_input_says_alone():
    net = Answering()
    net.hybridize()
    trainers = {
        "senses": TrainerSpec(r"(eye|word|ear)\..*", "adam", {"learning_rate": 1e-2}),
        "mind": TrainerSpec(r"(mind|answer|light)\..*", "adam", {"learning_rate": 1e-2}),
    }
    estimator = MultiEstimator(net, spec(), trainers)
    history = estimator.fit(batches(), batches(64, seed=1), epochs=12)
    assert history["val_accuracy"][-1] > 0.95  # image or question alone: 0.5
    assert history["val_light"][-1] < history["val_light"][0]
    outputs = estimator.predict(tuple(batches(64, seed=1)[0][:2]))
    assert outputs["answer"].shape == (32, 2) and outputs["light"].shape == (32, 1)
