"""Numbers in words, translated to digits: a recurrent encoder and an attention decoder, a trainer for each.

``--set model=transformer`` uses gluonnlp's transformer; ``dataset=parallel root=FOLDER`` reads parallel text
in the format of IWSLT and WMT. The loss is the mean per token. In evaluation, held-out text is translated by
beam search, and the figure is BLEU.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from multifit import LossSpec, MetricSpec, TaskSpec, TrainerSpec
from multifit.losses import SequenceCELoss

# On Python 3.12, multifit must be imported before mxnet.
# isort: split
from data.bitext import Bitext
from data.bleu import Bleu
from data.numbers import make_pairs
from data.parallel import read_parallel
from gluonnlp.model import BeamSearchSampler, BeamSearchScorer, transformer
from mxnet import init, lr_scheduler, nd
from parts.attention import AttentionDecoder, OneStepDecoder, RecurrentEncoder
from parts.translator import TransformerDecoder, Translator

model: Literal["rnn", "transformer"] = "rnn"
dataset: Literal["numbers", "parallel"] = "numbers"
root = ""  # for dataset=parallel: the folder of train.en, train.vi, tst2012.en and tst2012.vi
languages = ("en", "vi")
segments = ("train", "tst2012")
train_count = 4920  # spelled numbers
val_count = 400
vocabulary = 20_000  # maximum number of words of each language
longest = 20  # maximum number of tokens of a sentence
epochs = 10
batch_size = 64
learning_rate = 3e-3
clip_norm = 5.0
units = 64
beam = 4


def net():
    """Return a net around an encoder and a decoder; the estimator initialises it."""
    parts = {"rnn": rnn_parts, "transformer": transformer_parts}[model]()
    words = len(bitext().source), len(bitext().target)
    translation_net = Translator(*words, units, *parts, init.Uniform(0.25))
    translation_net.hybridize()
    return translation_net


def rnn_parts():
    """Return the encoder, the decoder, and the decoder for one step."""
    decoder = AttentionDecoder(units)
    return RecurrentEncoder(units), decoder, OneStepDecoder(decoder)


def transformer_parts():
    """Return gluonnlp's encoder, decoder and decoder for one step."""
    sizes = {"units": units, "hidden_size": 2 * units, "max_length": longest + 2}
    decoder = TransformerDecoder(output_attention=True, prefix="decoder_", **sizes)
    one_step = transformer.TransformerOneStepDecoder(
        prefix="decoder_", params=decoder.collect_params(), **sizes
    )
    return transformer.TransformerEncoder(**sizes), decoder, one_step


def spec(net):
    """Declare the loss for training, and beam search and BLEU for evaluation."""
    return TaskSpec(
        inputs=["source", "target_in", "source_length", "target_length"],
        outputs=["logits", ...],
        labels=["target_out", "target_length"],
        losses={
            "translation": LossSpec(
                SequenceCELoss(),
                outputs="logits",
                labels=["target_out", "target_length"],
                normalize_by="target_length",
            )
        },
        evaluate=TaskSpec(
            inputs=["source", "source_length"],
            outputs=["translation", "attention"],
            labels=["target_out"],
            batch=["source", "target_in", "source_length", "target_length", "target_out"],
            unused=["attention", "target_in", "target_length"],
            forward=beam_search(net),
            metrics={
                "bleu": MetricSpec(
                    Bleu(),
                    outputs="translation",
                    labels="target_out",
                    mode="max",
                    transform=lambda *both: tuple(bitext().decode(side.asnumpy()) for side in both),
                )
            },
        ),
    )


def beam_search(net):
    """Return the forward function for evaluation: a beam search, then one pass for the attention weights.

    Its outputs are padded, so that batches and devices have equal shapes.
    """
    begin, end = bitext().target[[bitext().target.bos_token, bitext().target.eos_token]]
    search = BeamSearchSampler(
        beam,
        decoder=net.decode_step,
        eos_id=end,
        scorer=BeamSearchScorer(from_logits=False),
        max_length=longest,
    )

    def forward(net, slots):
        source, length = slots["source"], slots["source_length"]
        states = net.decoder.init_state_from_encoder(net.encode(source, length)[0], length)
        first = nd.full(len(source), begin, ctx=source.context, dtype="int32")
        sequences, _, lengths = search(first, states)
        best, steps = sequences[:, 0], lengths[:, 0].astype("float32") - 1  # without the first token
        _, weights = net(source, nd.relu(best[:, :-1]), length, steps)
        return padded(best[:, 1:], 1, -1), padded(weights[-1][-1], -2, 0)

    return forward


def padded(array, axis, value):
    """Return an array with room for a whole sentence and its end along an axis."""
    room = longest + 1 - array.shape[axis]
    if room <= 0:
        return array
    shape = list(array.shape)
    shape[axis] = room
    return nd.concat(array, nd.full(shape, value, ctx=array.context, dtype=array.dtype), dim=axis)


def trainers(data):
    """Return a trainer for the encoder and one for the decoder; both learning rates fall to 0."""

    def adam(params):
        scheduler = lr_scheduler.CosineScheduler(epochs * len(data[0]), learning_rate)
        return TrainerSpec(params, "adam", lr_scheduler=scheduler, clip_norm=clip_norm)

    return {
        "encoder": adam(r"(src_embed|encoder)\..*"),
        "decoder": adam(r"(tgt_embed|decoder|tgt_proj)\..*"),
    }


@cache
def bitext():
    """Return the sentences of both languages."""
    if dataset == "parallel":
        train, val = (read_parallel(root, segment, languages) for segment in segments)
    else:
        pairs = make_pairs(train_count + val_count)
        train, val = pairs[:train_count], pairs[train_count:]
    return Bitext(train, val, vocabulary, longest)


def data():
    """Return loaders of training and of held-out sentences."""
    return bitext().loaders(batch_size)


def inputs(arguments):
    """Return a batch of the sentences on the command line."""
    source, _, length, *_ = bitext().batch([bitext().encode(text) for text in arguments])
    return source, length


def show(outputs):
    """Return the translations."""
    return bitext().decode(outputs["translation"])


def pictures(estimator):
    """Draw the attention weights of each token of six held-out translations."""
    from matplotlib.figure import Figure

    pairs = bitext().held_out[:6]
    outputs = estimator.predict(inputs([source for source, _ in pairs]))
    sheet = Figure(figsize=(13, 8), layout="constrained")
    sheet.suptitle(f"{model}: the attention (dark) of each predicted token")
    for place, ((source, target), predicted) in enumerate(zip(pairs, show(outputs))):
        weights = outputs["attention"][place]
        weights = weights.mean(axis=0) if weights.ndim == 3 else weights  # over the transformer's heads
        words, tokens = [*source.split()[:longest], "end"], [*predicted.split(), "end"]
        axes = sheet.add_subplot(2, 3, place + 1)
        axes.imshow(weights[: len(tokens), : len(words)], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(words)), words, rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(tokens)), tokens)
        right = predicted == target
        axes.set_title("right" if right else f"wrong: {target}", color="black" if right else "tab:red")
    return {"attention": sheet}
