"""Did somebody like the film? A bidirectional LSTM, or a convolutional net, on sentences full of negation.

The sentences are generated; ``--set dataset=imdb root=FOLDER length=200`` reads the 50,000 reviews of IMDB.
"""

from __future__ import annotations

from functools import cache
from textwrap import shorten
from typing import Literal

from multifit import Interpretation, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import gluonnlp as nlp
import numpy as np
from data.imdb import read_imdb
from data.sentences import MOODS, make_reviews, words_of
from mxnet import gluon, init, metric
from mxnet.gluon import nn
from parts.bidirectional import Bidirectional

model: Literal["birnn", "textcnn"] = "birnn"
dataset: Literal["sentences", "imdb"] = "sentences"
root = ""  # for dataset=imdb: its folder
train_count = 3000  # generated sentences
val_count = 500
vocabulary = 20_000  # maximum number of words
length = 32  # words that are read of each text, from its beginning
epochs = 8
batch_size = 64
learning_rate = 3e-3
word_units = 64
hidden_units = 64


class BiRNN(nn.HybridBlock):
    """A bidirectional LSTM whose states are averaged over the words."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, word_units, weight_initializer=init.Normal(0.3))
        self.encoder = Bidirectional(gluon.rnn.LSTM, hidden_units)
        self.mood = nn.Dense(len(MOODS))

    def hybrid_forward(self, F, words, length):
        """Return moods (N, 2) for words (N, T) and lengths (N,)."""
        states = self.encoder(self.embedding(words), length)
        return self.mood(F.broadcast_div(F.sum(states, axis=1), F.expand_dims(length, axis=1)))


class TextCNN(nn.HybridBlock):
    """Convolutions over two to five words, with the maximum over the text (Kim, 2014)."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, word_units, weight_initializer=init.Normal(0.3))
        self.encoder = nlp.model.ConvolutionalEncoder(word_units, [hidden_units] * 4, [2, 3, 4, 5], "relu")
        self.mood = nn.Dense(len(MOODS))

    def hybrid_forward(self, F, words, length):
        """Return moods (N, 2) for words (N, T) and lengths (N,)."""
        time_first = F.swapaxes(self.embedding(words), dim1=0, dim2=1)
        return self.mood(self.encoder(F.SequenceMask(time_first, length, use_sequence_length=True)))


def net():
    """Return the net; the estimator initialises it."""
    mood_net = {"birnn": BiRNN, "textcnn": TextCNN}[model](len(vocab()))
    mood_net.hybridize()
    return mood_net


def spec():
    """Declare that the net takes words and the length of each text, and returns a mood."""
    return TaskSpec(
        inputs=["words", "length"],
        outputs=["mood"],
        labels=["mood"],
        losses={"mood": gluon.loss.SoftmaxCrossEntropyLoss()},
        metrics={
            "accuracy": MetricSpec(metric.Accuracy(), outputs="mood", labels="mood"),
        },
    )


def trainers():
    """Return Adam for all parameters."""
    return TrainerSpec(".*", "adam", {"learning_rate": learning_rate})


@cache
def reviews():
    """Return lists of (text, mood): the training data and the held-out data."""
    if dataset == "imdb":
        return read_imdb(root, "train"), read_imdb(root, "test")
    sentences = make_reviews(train_count + val_count)
    return sentences[:train_count], sentences[train_count:]


@cache
def vocab():
    """Return the vocabulary of the training data; all other words are unknown."""
    words = (word for text, _ in reviews()[0] for word in words_of(text))
    return nlp.Vocab(nlp.data.count_tokens(words), vocabulary, bos_token=None, eos_token=None)


def encoded(texts):
    """Return words (N, length), padded or cut, and the number of words in each text (N,)."""
    pad = nlp.data.PadSequence(length, pad_val=vocab()[vocab().padding_token])
    indices = [vocab()[words_of(text) or [vocab().unknown_token]] for text in texts]
    lengths = [min(len(words), length) for words in indices]
    return np.array([pad(words) for words in indices], "int32"), np.array(lengths, "float32")


def data():
    """Return loaders of words, lengths and moods."""
    train, val = (
        gluon.data.ArrayDataset(*encoded(texts), np.array(moods, "int32"))
        for texts, moods in (zip(*part) for part in reviews())
    )
    return (
        gluon.data.DataLoader(train, batch_size, shuffle=True),
        gluon.data.DataLoader(val, batch_size),
    )


def inputs(arguments):
    """Return a batch of the texts on the command line."""
    return encoded(arguments)


def show(outputs):
    """Return each text's mood, with the probability."""
    probability = 1 / (1 + np.exp(-np.abs(np.diff(outputs["mood"])[:, 0])))
    return [f"{MOODS[mood]} ({p:.1%})" for mood, p in zip(outputs["mood"].argmax(axis=1), probability)]


def pictures(estimator, data):
    """Draw the confusion matrix of the held-out texts, and list those with a wrong prediction."""
    from matplotlib.figure import Figure

    found = Interpretation()
    estimator.evaluate(data[1], event_handlers=[found])
    texts, truth = zip(*reviews()[1])
    outputs = estimator.predict(data[1])
    predicted, answers = outputs["mood"].argmax(axis=1), show(outputs)
    wrong = np.flatnonzero(predicted != np.array(truth))
    lines = [f"{answers[i]}: {shorten(texts[i], 110, placeholder=' …')}" for i in wrong[:20]]
    sheet = Figure(figsize=(9, 0.6 + 0.2 * len(lines)))
    sheet.suptitle(
        f"{model}: {len(wrong)} wrong held-out texts, with prediction and probability", fontsize=10, y=0.98
    )
    sheet.text(
        0.02, 0.98 - 0.4 / sheet.get_figheight(), "\n".join(lines), va="top", fontsize=8, linespacing=1.6
    )
    return {**found.plots({"mood": MOODS}), "misread": sheet}
