"""Programs of recorded nets: one for each form of batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import Block, nn

from multifit import (
    LabelSpec,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
)
from multifit.gluon.compat import mx
from multifit.sampling import RoundRobin
from multifit.seeding import seed_everything
from multifit.torch.traced import program
from tests.common.data import in_batches, two_head_arrays
from tests.common.language import BATCHES, UNITS, LanguageModel, make_net, make_spec
from tests.common.specs import CE, one_loss_spec, two_head_spec
from tests.torch.fits import assert_close, codes_of, stages_of
from tests.torch.runs import assert_resumes, values
from tests.torch.test_recorded import SGD, TOLERANCE, batches, fit, halves, translation_spec, translator

SEEN: list[Any] = []
ROWS = np.random.RandomState(2).randn(20, 6)
LABELS = ROWS[:, :3].argmax(axis=1).astype("float64")
SIZES = [(ROWS[part], LABELS[part]) for part in (slice(8), slice(8, 16), slice(16, 20), slice(3, 11))]


class Scaled(Block):
    """Normalised numbers through a dense layer, dropout and a scale; it writes down what Python saw."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        with self.name_scope():
            self.norm, self.dense = nn.BatchNorm(in_channels=6), nn.Dense(3, in_units=6)
            self.drop = nn.Dropout(rate)
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        SEEN.append((x.shape, mx.autograd.is_training()))
        return self.drop(self.dense(self.norm(x))) * self.scale


def scaled(net: Any = None) -> Any:
    seed_everything(1)
    net = net or Scaled()
    net.cast("float64")
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def fits(make: Any = scaled, spec: Any = None, data: Any = SIZES, **options: Any) -> Any:
    """Return estimators that MXNet and torch have fitted, with the same figures and parameters."""
    spec = spec or one_loss_spec(CE)
    one, other = (fit(engine, make(), spec, SGD, data, **options) for engine in ("mxnet", "torch"))
    assert_close(dict(one.history), dict(other.history))
    assert_close(values(one), values(other))
    return one, other


def test_python_runs_for_each_form_and_mode_only() -> None:
    SEEN.clear()
    estimator = fit("torch", scaled(), one_loss_spec(CE), SGD, SIZES, epochs=3, val_data=SIZES)
    seen = set(SEEN)
    assert seen == {((size, 6), training) for size in (8, 4) for training in (True, False)}
    count = len(SEEN)
    estimator.evaluate(SIZES, event_handlers=[])
    assert len(SEEN) == count
    estimator.predict([x for x, _ in SIZES])
    assert len(SEEN) == count + 4  # its outputs alone: twice for each form


def test_a_number_that_a_handler_changes_counts_at_once() -> None:
    class Fade:
        def batch_end(self, estimator: Any) -> None:
            estimator.net.scale *= 0.5

    fits(epochs=2, event_handlers=[Fade()])


def test_old_programs_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_PROGRAMS", 1)
    one, other = fits(epochs=2, val_data=SIZES)
    assert_close(one.predict(SIZES), other.predict(SIZES))
    assert [len(stage._programs) for stage in stages_of(other)] == [1, 1]
    assert len(other._runner._evaluation._predictor._programs._programs) == 1


def test_handlers_change_the_outputs_of_a_recorded_net() -> None:
    class Halve:
        def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
            return {name: array * 0.5 for name, array in outputs.items()}

    fits(epochs=2, event_handlers=[Halve()])


def test_dropout_drops_in_training_only_and_resumes_exactly(tmp_path: Path) -> None:
    def make(engine: str, rate: float = 0.5) -> MultiEstimator:
        return MultiEstimator(scaled(Scaled(rate)), one_loss_spec(CE), SGD, engine=engine, context="cpu")

    assert_resumes(make, tmp_path, stop=3, data=SIZES)
    dropped, plain = make("torch"), make("torch", 0.0)
    for estimator in (dropped, plain):
        estimator.fit(SIZES, epochs=1, event_handlers=[])
    assert any((values(plain)[name] != value).any() for name, value in values(dropped).items())
    expected = dropped.net(nd.array(np.concatenate([x for x, _ in SIZES]), dtype="float64")).asnumpy()
    for _ in range(2):
        np.testing.assert_allclose(dropped.predict(SIZES)["out"], expected, rtol=TOLERANCE)


class Reading(Scaled):
    """Reads a number, in training or when it evaluates, of batches of a size."""

    def __init__(self, training: bool, size: int) -> None:
        super().__init__()
        self.when = training, size

    def forward(self, x: Any) -> Any:
        out = super().forward(x)
        if (mx.autograd.is_training(), len(x)) == self.when:
            out = out * float(out.sum().asscalar() > -1e9)
        return out


def test_a_net_that_reads_numbers_is_refused_before_anything_moves() -> None:
    net = scaled(Reading(True, 8))
    parameters = net.collect_params().values()
    before = [parameter.data().asnumpy() for parameter in parameters]
    for call in (lambda e: e.check(SIZES), lambda e: e.fit(SIZES, epochs=1, event_handlers=[])):
        estimator = MultiEstimator(net, one_loss_spec(CE), SGD, context="cpu", engine="torch")
        with pytest.raises(
            SpecError, match=r"Reading \(test_recorded_programs.py, line \d+\), reads numbers out of an array"
        ):
            call(estimator)
    for parameter, value in zip(parameters, before):
        np.testing.assert_array_equal(parameter.data().asnumpy(), value)


def test_a_net_that_reads_numbers_of_a_later_form_is_refused_there() -> None:
    with pytest.raises(SpecError, match=r"epoch 1, batch 3: (.|\n)*reads numbers out of an array"):
        fit("torch", scaled(Reading(True, 4)), one_loss_spec(CE), SGD, SIZES)


@pytest.mark.parametrize(
    "metrics", [{}, {"right": MetricSpec(mx.metric.Accuracy(), "out", "y")}], ids=["recorded", "run"]
)
def test_a_batch_of_another_width_is_named(metrics: dict[str, MetricSpec]) -> None:
    spec = TaskSpec(outputs="out", labels=["y"], losses={"l": LossSpec(CE, "out", "y")}, metrics=metrics)
    wider = np.zeros((8, 7)), np.zeros(8)
    with pytest.raises(mx.MXNetError, match=r"(?s)Error in operator .*[Ss]hape.*inconsistent.*batch 5"):
        fit("torch", scaled(), spec, SGD, [*SIZES, wider])


def test_a_net_that_reads_numbers_when_it_evaluates_does_so_with_mxnet(caplog: Any) -> None:
    one, other = fits(lambda: scaled(Reading(False, 8)), val_data=SIZES)
    assert_close(one.predict(SIZES), other.predict(SIZES))
    assert "evaluating runs with MXNet on the CPU: " in caplog.text
    assert "reads numbers out of an array" in caplog.text


class TwoHeads(Block):
    """Two heads on one body, which need a batch's shape."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.body, self.digit, self.size = (nn.Dense(units, in_units=6) for units in (6, 3, 1))

    def forward(self, x: Any) -> Any:
        features = nd.relu(self.body(x.reshape(x.shape[0], -1)))
        return self.digit(features), self.size(features)


def test_loaders_that_take_turns() -> None:
    labels = [LabelSpec("digit", missing=2), LabelSpec("size", missing="nan")]
    arrays = two_head_arrays(40)
    loaders = {name: in_batches([arrays["image"], arrays[name]]) for name in ("digit", "size")}
    spec, turns = two_head_spec(labels=labels), RoundRobin()
    fits(lambda: scaled(TwoHeads()), spec, loaders, epochs=2, val_data=loaders, sampling=turns)


class OnArrays(LanguageModel):
    """A language model that looks at the shape of its words."""

    def forward(self, words: Any, hidden: Any, cell: Any) -> Any:
        out, state = self.lstm(self.embed(words), [hidden, cell])
        return self.words(out.reshape(len(words), -1, UNITS)), state


def test_state_that_is_carried_from_batch_to_batch() -> None:
    def make() -> Any:
        return make_net(dtype="float64", kind=OnArrays)

    one, other = fits(make, make_spec(), BATCHES, epochs=2, val_data=BATCHES, batch_axis=1)
    assert "recorded" in str(other.plan)
    assert_close(one.predict(BATCHES, batch_axis=1), other.predict(BATCHES, batch_axis=1))


def test_a_recorded_net_trains_in_a_lower_precision() -> None:
    data = [tuple(a.astype("float32") if a.dtype == "float64" else a for a in batch) for batch in batches()]
    net, how = translator("rnn"), {"engine": "torch", "precision": "bfloat16"}
    net.cast("float32")
    estimator = MultiEstimator(net, translation_spec(), halves(), context="cpu", **how)
    losses = estimator.fit(data, epochs=2, event_handlers=[])["train_loss"]
    assert losses[1] < losses[0] and "bfloat16" in str(estimator.plan)
    (code,) = codes_of(estimator)
    assert "bfloat16" in code
