"""Nets that no symbol runs through: recorded for each form of batches, they train as with MXNet."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.compat import mx
from multifit.losses import SequenceCELoss
from multifit.seeding import seed_everything
from multifit.taskfile import TaskFile
from tests.common.specs import CE, one_loss_spec
from tests.torch.fits import assert_close, assert_engines_agree, stages_of
from tests.torch.runs import PAIRS, assert_resumes, values

# isort: split
from gluonnlp.model import BiLMEncoder
from gluonnlp.model.train import StandardRNN
from gluonnlp.model.translation import NMTModel
from mxnet import nd
from mxnet.gluon import Block, HybridBlock, nn, rnn

FILE = Path(__file__).parents[2] / "tasks" / "translation.py"
TOLERANCE = 1e-10
FORMS = [(5, 4), (3, 4), (5, 4), (4, 2), (3, 4), (5, 6)]  # lengths of source and target


class StepwiseDecoder(HybridBlock):
    """An LSTM with attention that is fed back into it, step by step, as in GNMT."""

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.name_scope():
            self.cell = rnn.LSTMCell(units)

    def init_state_from_encoder(self, encoded: Any, encoder_valid_length: Any) -> Any:
        length = encoder_valid_length.expand_dims(1)
        places = nd.arange(encoded.shape[1], dtype=length.dtype).expand_dims(0)
        state = self.cell.begin_state(batch_size=encoded.shape[0], dtype=encoded.dtype)
        return [encoded, nd.broadcast_lesser(places, length), state]

    def forward(self, embedded: Any, states: Any, length: Any = None) -> Any:
        memory, valid, state = states
        context, outputs = nd.zeros_like(memory[:, 0]), []
        for i in range(embedded.shape[1]):
            out, state = self.cell(nd.concat(embedded[:, i], context, dim=1), state)
            scores = nd.where(valid, nd.batch_dot(memory, out.expand_dims(2)).squeeze(2), valid * 0 - 1e9)
            context = nd.batch_dot(nd.softmax(scores).expand_dims(1), memory).squeeze(1)
            outputs.append(out + context)
        masked = nd.SequenceMask(nd.stack(*outputs, axis=1), length, use_sequence_length=True, axis=1)
        return masked, [memory, valid, state], []


def task_of(model: str) -> Any:
    file = TaskFile(FILE)
    sizes = ["train_count=40", "val_count=8", "batch_size=8", "units=8", "beam=2", "epochs=2"]
    file.set(["model=transformer"] * (model == "transformer") + sizes)
    return file.module


def translator(model: str) -> Any:
    """Return a net of gluonnlp's in float64."""
    seed_everything(3)
    task = task_of(model)
    encoder, decoder = task.RecurrentEncoder(8), StepwiseDecoder(8)
    if model == "rnn":
        decoder = task.AttentionDecoder(8)
    if model == "transformer":
        sizes = {"units": 8, "hidden_size": 12, "num_layers": 1, "num_heads": 2, "max_length": 22}
        encoder, decoder = (
            task.transformer.TransformerEncoder(**sizes),
            task.transformer.TransformerDecoder(**sizes),
        )
    net = NMTModel(task.bitext().source, task.bitext().target, encoder, decoder, None, embed_size=8)
    net.hybridize()
    net.initialize(mx.init.Xavier())
    net.cast("float64")
    words, lengths = nd.ones((2, 3), dtype="int32"), nd.ones(2, dtype="float64")
    net(words, words, lengths, lengths)  # initialises it now
    return net


def batches(forms: Any = FORMS) -> list[Any]:
    random, made = np.random.RandomState(1), []
    for longest, target_longest in forms:
        source, target = (random.randint(4, 9, (6, size)) for size in (longest, target_longest + 1))
        lengths, target_lengths = (random.randint(1, size + 1, 6) for size in (longest, target_longest))
        made.append((source, target[:, :-1], lengths * 1.0, target_lengths * 1.0, target[:, 1:]))
    return [tuple(a.astype("int32") if a.dtype.kind == "i" else a for a in batch) for batch in made]


def translation_spec() -> TaskSpec:
    loss = LossSpec(SequenceCELoss(), "logits", ["target_out", "target_length"], normalize_by="target_length")
    return TaskSpec(
        inputs=["source", "target_in", "source_length", "target_length"],
        outputs=["logits", ...],
        labels=["target_out", "target_length"],
        losses={"translation": loss},
    )


SGD = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "momentum": 0.9})


def halves() -> dict[str, TrainerSpec]:
    encoder, decoder = r"(src_embed|encoder)\..*", r"(tgt_embed|decoder|tgt_proj)\..*"
    adam = "adam", {"learning_rate": 0.01}
    return {
        "encoder": TrainerSpec(encoder, *adam, clip_norm=1.0),
        "decoder": TrainerSpec(decoder, *adam, clip_norm=1.0),
    }


def fit(engine: str, net: Any, spec: TaskSpec, trainers: Any, data: Any, **options: Any) -> MultiEstimator:
    estimator = MultiEstimator(
        net, spec, trainers, context="cpu" if engine == "torch" else None, engine=engine
    )
    estimator.fit(data, **{"epochs": 1, "event_handlers": [], **options})
    return estimator


# ---- the same as MXNet -------------------------------------------------------------------------------------

MODELS = ["rnn", "transformer", "step by step"]


@pytest.mark.parametrize("model", MODELS)
def test_outputs_and_gradients_are_those_of_mxnet(model: str) -> None:
    trainers = TrainerSpec(".*", "sgd", {"learning_rate": 1.0})
    parameters = translator(model)._collect_params_with_prefix()
    for batch in batches([(5, 4), (3, 2)]):
        one, other = (
            fit(engine, translator(model), translation_spec(), trainers, [batch])
            for engine in ("mxnet", "torch")
        )
        before = {name: p.data().asnumpy() for name, p in parameters.items()}
        moved = [{name: before[name] - value for name, value in values(end).items()} for end in (one, other)]
        assert_close(*moved)
        assert all(np.abs(moved[1][name]).max() > 0 for name, p in parameters.items() if p.grad_req != "null")
        assert_close(one.predict([batch]), other.predict([batch]))


def test_20_steps_in_several_forms_are_those_of_mxnet() -> None:
    data = batches(FORMS * 3 + FORMS[:2])
    ends = [
        fit(engine, translator("rnn"), translation_spec(), halves(), data, epochs=1, val_data=data[:4])
        for engine in ("mxnet", "torch")
    ]
    assert_close(*[dict(each.history) for each in ends])
    assert_close(*[values(each) for each in ends], tolerance=1e-8)
    assert_close(*[each.evaluate(data[:4], event_handlers=[]) for each in ends])
    assert [len(stage._programs) for stage in stages_of(ends[1])] == [4, 3]


@pytest.mark.parametrize("engines", PAIRS, ids="-".join)
def test_a_run_resumes_on_either_engine(engines: tuple[str, str], tmp_path: Path) -> None:
    def make(engine: str) -> MultiEstimator:
        return MultiEstimator(translator("rnn"), translation_spec(), halves(), engine=engine)

    assert_resumes(make, tmp_path, engines, 4, batches(FORMS[:3]))


def test_the_task_trains_and_searches_with_mxnet(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    ends, task = [], task_of("rnn")
    for engine in ("mxnet", "torch"):
        seed_everything(3)
        net = task.net()
        net.initialize(mx.init.Xavier())
        np.random.seed(0)
        train, val = task.data()
        train = list(train)
        trainers = task.trainers((train, None))
        end = fit(engine, net, task.spec(net), trainers, train, epochs=2, val_data=val)
        ends.append((dict(end.history), end.predict(val)))
    assert_close(ends[0][0], ends[1][0], tolerance=1e-4)
    np.testing.assert_array_equal(ends[0][1]["translation"], ends[1][1]["translation"])
    assert "evaluating runs with MXNet on the CPU" in caplog.text


class Onward(Block):
    """Scores of the word after each word, by gluonnlp's language model."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = StandardRNN("lstm", 9, 6, 6, 1, dropout=0.0)

    def forward(self, words: Any) -> Any:
        states = self.layer.begin_state(batch_size=words.shape[0], dtype="float64")
        return self.layer(words.swapaxes(0, 1), states)[0].swapaxes(0, 1)


class Both(Block):
    """The same by gluonnlp's bidirectional encoder."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(9, 4)
            self.layer = BiLMEncoder("lstmpc", 2, 4, 6, 0.0, False, proj_size=4)
            self.out = nn.Dense(9, flatten=False)

    def forward(self, words: Any) -> Any:
        steps = self.embedding(words).swapaxes(0, 1)
        states = self.layer.begin_state(nd.zeros, batch_size=words.shape[0], dtype="float64")
        return self.out(self.layer(steps, states)[0][-1]).swapaxes(0, 1)


@pytest.mark.parametrize("make", [Onward, Both])
def test_language_models_that_make_their_states_of_shapes(make: Callable[[], Any]) -> None:
    random = np.random.RandomState(1)
    data = [(words := random.randint(0, 9, (4, size)).astype("float64"), words) for size in (5, 3, 5)]

    def run(engine: str) -> Any:
        seed_everything(1)
        net = make()
        net.initialize(mx.init.Xavier())
        net.cast("float64")
        net.hybridize()
        end = fit(engine, net, one_loss_spec(CE), SGD, data, epochs=2)
        return dict(end.history), values(end), end.predict(data[0])

    assert_engines_agree(run)
