"""Which word comes next? A word language model on the texts that Python's ``help`` prints.

An LSTM reads 20 parts of the text side by side, 35 words at a time, and begins each batch with the state that
it had at the end of the previous batch (truncated backpropagation through time). ``perplexity`` is that of
held-out texts. ``saved`` is the share by which it is below that of a bigram model, which counts pairs of
words.
"""

from functools import cache

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
import gluonnlp as nlp
import numpy as np
from data.python_topics import bigram_perplexity, read_topics, unigram_perplexity, words_of
from mxnet import gluon, init, metric
from mxnet.gluon import nn

epochs = 10
batch_size = 20  # parts of the text that are read side by side
length = 35  # words of each part in a batch
rate = 5e-3
units = 128
dropout = 0.4
rarest = 3  # words that are rarer in the training texts are unknown


class LanguageModel(nn.HybridBlock):
    """Embeds words, reads them with an LSTM, and scores the words that may come next."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, units, weight_initializer=init.Normal(0.1))
        self.dropout = nn.Dropout(dropout)
        self.lstm = gluon.rnn.LSTM(units, layout="NTC", input_size=units)
        self.words = nn.Dense(words, flatten=False, in_units=units)

    def hybrid_forward(self, F, words, hidden, cell):
        """Return scores (N, T, words), and the state (1, N, units) twice, for words (N, T) and a state."""
        features, state = self.lstm(self.dropout(self.embed(words)), [hidden, cell])
        return self.words(self.dropout(features)), state


class Perplexity(metric.Loss):
    """The perplexity, and the share by which it is below a bigram model's."""

    def get(self):
        """Return names and values."""
        perplexity = np.exp(super().get()[1])
        return ["perplexity", "saved"], [perplexity, 1 - perplexity / perplexities()["bigram"]]


def net():
    """Return the net; the estimator initialises it."""
    language_model = LanguageModel(len(vocab()))
    language_model.hybridize()
    return language_model


def spec():
    """Declare which outputs are the state for the next batch, and the loss and the metric."""
    return TaskSpec(
        inputs=["words", "hidden", "cell"],
        outputs=["scores", ["hidden", "cell"]],
        labels=["next"],
        losses={"next": LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), "scores", "next")},
        metrics={
            "text": MetricSpec(Perplexity(), losses="next", names=["perplexity", "saved"], stage="evaluate")
        },
        state={"hidden": (1, 0, units), "cell": (1, 0, units)},
    )


def trainers():
    """Return Adam for all parameters, with clipped gradients."""
    return TrainerSpec(".*", "adam", {"learning_rate": rate}, clip_norm=1.0)


@cache
def texts():
    """Return the words of training texts and of held-out ones."""
    return read_topics()


@cache
def vocab():
    """Return the vocabulary of the training data; all other words are unknown."""
    counts = nlp.data.count_tokens(texts()[0])
    return nlp.Vocab(counts, min_freq=rarest, padding_token=None, bos_token=None, eos_token=None)


@cache
def perplexities():
    """Return the held-out texts' perplexity by a model that counts words, and by one that counts pairs."""
    train, held_out = (vocab()[text] for text in texts())
    return {
        "unigram": unigram_perplexity(train, held_out, len(vocab())),
        "bigram": bigram_perplexity(train, held_out, len(vocab())),
    }


def data():
    """Return batches of words and the words that follow; each batch begins where the one before ended."""
    return tuple(_batches(vocab()[text]) for text in texts())


def _batches(ids):
    count = (len(ids) - 1) // (batch_size * length)  # the rest is left out
    columns = [np.array(part[: count * batch_size * length]) for part in (ids[:-1], ids[1:])]
    shaped = [column.reshape(batch_size, count, length).swapaxes(0, 1).astype("int32") for column in columns]
    return list(zip(*shaped))


def inputs(arguments):
    """Return the last words of each text on the command line; short texts get full stops in front."""
    words = [["."] * length + words_of(text) for text in arguments]
    return np.array([vocab()[text[-length:]] for text in words], "int32")


def show(outputs):
    """Return for each text the five most probable next words."""
    best = np.argsort(-outputs["scores"][:, -1], axis=1)[:, :5]
    return [", ".join(vocab().to_tokens(row.tolist())) for row in best]
