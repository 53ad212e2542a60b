"""Nets of many kinds, each declared as its users would, train as in the hand-written loop."""

from typing import Any

import gluonnlp as nlp
import numpy as np
import pytest

from multifit import LossSpec, TaskSpec
from tests.common.hand_loop import assert_trains_as_by_hand
from tests.common.nets import sequential
from tests.common.specs import CE, L2

from mxnet import autograd, gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

RANDOM = np.random.RandomState(0)
WORDS, SAMPLES, STEPS = 12, 6, 5


def real(*shape: int) -> np.ndarray:
    """Return normally distributed numbers."""
    return RANDOM.randn(*shape).astype("float32")


def words(*shape: int, least: int = 0) -> np.ndarray:
    """Return indices of words."""
    return RANDOM.randint(least, WORDS, shape).astype("float32")


def lengths(least: int, most: int) -> np.ndarray:
    """Return a length for each sample."""
    return RANDOM.randint(least, most + 1, SAMPLES).astype("float32")


SHARED = {
    "siamese": (gluon.loss.CosineEmbeddingLoss(), 2, ["same"]),
    "triplets": (gluon.loss.TripletLoss(), 3, []),
}


@pytest.mark.parametrize("kind", SHARED)
def test_one_net_is_called_several_times(kind: str) -> None:
    """Hadsell et al., 2006, with a label for each pair; Schroff et al., 2015, whose loss has no label."""
    loss, count, labels = SHARED[kind]
    names = ["anchor", "second", "third"][:count]
    spec = TaskSpec(
        inputs=names, outputs=names, labels=labels, losses={"distance": LossSpec(loss, names, labels)},
        forward=lambda net, slots: tuple(net(slots[name]) for name in names),
    )  # fmt: skip
    batches = [(*[real(n, 4) for _ in names], *[np.sign(real(n)) for _ in labels]) for n in (6, 6, 6, 5)]

    def objective(net: Any, *arrays: Any) -> Any:
        return loss(*[net(image) for image in arrays[:count]], *arrays[count:])

    assert_trains_as_by_hand(lambda: sequential(nn.Dense(8, "relu"), nn.Dense(3)), spec, batches, objective)


class Autoencoder(nn.HybridBlock):
    """A variational one, without its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_variance, self.decoder = nn.Dense(2), nn.Dense(2), nn.Dense(4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        mean = self.mean(x)
        return self.decoder(mean), mean, self.log_variance(x)


def divergence(mean: Any, log_variance: Any) -> Any:
    return -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(axis=1)


def test_an_autoencoders_label_is_its_input() -> None:
    """Kingma and Welling, 2014: and one of its losses has no label."""
    losses = {
        "image": LossSpec(L2, "image", "x"),
        "divergence": LossSpec(divergence, ["mean", "log"], weight=0.1),
    }
    spec = TaskSpec(inputs=["x"], outputs=["image", "mean", "log"], labels=["x"], losses=losses)

    def objective(net: Any, x: Any) -> Any:
        image, *latent = net(x)
        return L2(image, x) + 0.1 * divergence(*latent)

    assert_trains_as_by_hand(
        Autoencoder, spec, [(real(SAMPLES, 4),) for _ in range(4)], objective, None, True
    )


class Reader(nn.HybridBlock):
    """A bidirectional LSTM with a class for each column of a line of text, the blank included."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = gluon.rnn.LSTM(6, layout="NTC", bidirectional=True)
        self.character = nn.Dense(WORDS, flatten=False)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return self.character(self.lstm(image))


def test_a_line_of_text_is_read_with_ctc() -> None:
    """Graves et al., 2006: the loss aligns the text with the image, each of its own length."""
    ctc = gluon.loss.CTCLoss()
    spec = TaskSpec(
        inputs=["image"],
        outputs=["characters"],
        labels=["text", "columns", "letters"],
        losses={"ctc": LossSpec(ctc, "characters", ["text", "columns", "letters"],
                                arguments=["characters", "text", "columns", "letters"])},
    )  # fmt: skip
    batches = [
        (real(SAMPLES, 9, 3), words(SAMPLES, 3, least=1) - 1, lengths(8, 9), lengths(1, 3)) for _ in range(4)
    ]

    def objective(net: Any, image: Any, *labels: Any) -> Any:
        return ctc(net(image), *labels)

    assert_trains_as_by_hand(Reader, spec, batches, objective, hybrid=True)


def test_bert_classifies_pairs_of_sentences() -> None:
    """Devlin et al., 2019, as gluonnlp's fine-tuning scripts train it."""

    def make() -> Any:
        encoder = nlp.model.BERTEncoder(num_layers=1, units=8, hidden_size=16, max_length=STEPS, num_heads=2)
        bert = nlp.model.BERTModel(
            encoder, WORDS, 2, units=8, embed_size=8, use_decoder=False, use_classifier=False
        )
        return nlp.model.BERTClassifier(bert, num_classes=2)

    inputs = ["words", "segments", "length"]
    spec = TaskSpec(inputs=inputs, outputs=["label"], labels=["label"], losses={"label": CE})
    batches = [
        (words(SAMPLES, STEPS), words(SAMPLES, STEPS) % 2, lengths(2, STEPS), words(SAMPLES) % 2)
        for _ in range(4)
    ]

    def objective(net: Any, *slots: Any) -> Any:
        return CE(net(*slots[:3]), slots[3])

    options = {"learning_rate": 1e-2}
    assert_trains_as_by_hand(make, spec, batches, objective, None, True, "sgd", options, inputs=3)


def test_a_language_model_is_regularized_by_its_activations() -> None:
    """Merity et al., 2018: gluonnlp's AWD LSTM returns nested lists, all of which its loss takes."""
    activation = nlp.loss.ActivationRegularizationLoss(2)
    change = nlp.loss.TemporalActivationRegularizationLoss(1)

    def make() -> Any:
        none = dict.fromkeys(["dropout", "weight_drop", "drop_h", "drop_i", "drop_e"], 0)
        return nlp.model.train.AWDRNN("lstm", WORDS, embed_size=6, hidden_size=6, num_layers=2, **none)

    def forward(net: Any, slots: Any) -> Any:
        text = slots["text"]
        logits, _, raw, dropped = net(text.T, net.begin_state(text.shape[0], ctx=text.context))
        return logits, raw, dropped

    def loss(logits: Any, second: Any, dropped: Any, following: Any) -> Any:
        return CE(logits, following.T).mean() + activation(dropped) + change(second)

    spec = TaskSpec(
        inputs=["text"],
        outputs=["logits", ("first", "second"), ("dropped",)],
        labels=["next"],
        unused=["first"],
        forward=forward,
        losses={"perplexity": LossSpec(loss, ["logits", "second", "dropped"], "next")},
    )
    batches = [(words(SAMPLES, STEPS), words(SAMPLES, STEPS)) for _ in range(4)]

    def objective(net: Any, text: Any, following: Any) -> Any:
        logits, raw, dropped = forward(net, {"text": text})
        return loss(logits, raw[1], dropped[0], following) * len(text)  # one number is the mean of the batch

    assert_trains_as_by_hand(make, spec, batches, objective)


def test_a_critic_with_a_gradient_penalty() -> None:
    """Gulrajani et al., 2017: the penalty differentiates the critic with respect to its input."""

    def forward(net: Any, slots: Any) -> Any:
        real, fake, share = (slots[name] for name in ("real", "fake", "share"))
        between = share * real + (1 - share) * fake
        between.attach_grad()
        slope = autograd.grad(net(between), between, create_graph=True, retain_graph=True)[0]
        return net(real), net(fake), slope

    def distance(real: Any, fake: Any) -> Any:
        return (fake - real).reshape(-1)

    def penalty(slope: Any) -> Any:
        return ((slope**2).sum(axis=1).sqrt() - 1) ** 2

    spec = TaskSpec(
        inputs=["real", "fake", "share"],
        outputs=["real", "fake", "slope"],
        forward=forward,
        losses={
            "distance": LossSpec(distance, ["real", "fake"]),
            "penalty": LossSpec(penalty, "slope", weight=10),
        },
    )
    batches = [(real(SAMPLES, 4), real(SAMPLES, 4), np.abs(real(SAMPLES, 1)) % 1) for _ in range(4)]

    def objective(net: Any, *arrays: Any) -> Any:
        outputs = forward(net, dict(zip(spec.inputs, arrays)))
        return distance(*outputs[:2]) + 10 * penalty(outputs[2])

    def make() -> Any:
        return sequential(nn.Dense(8), nn.HybridLambda("tanh"), nn.Dense(1))

    assert_trains_as_by_hand(make, spec, batches, objective)
