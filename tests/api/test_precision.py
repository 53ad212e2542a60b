"""precision="bfloat16": the same training but for the rounding, and nothing else in the process changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    Every,
    GradientAccumulation,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.gluon.data.seeding import seed_everything

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

# bfloat16 keeps 8 bits of a number: rounding it to the nearest is wrong by 2^-9 of it at most. Of the net's
# four products each rounds what it is given, its weights and what it returns: 12 roundings on a batch's way,
# which add up as errors do that do not know of each other.
CLOSE = 12**0.5 * 2.0**-9


class Net(gluon.HybridBlock):
    """Convolution, BatchNorm and two heads; evaluating it returns more than training, as SSD does."""

    def __init__(self, dropout: float = 0.0, normalised: bool = True) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Conv2D(8, 3, padding=1), *([nn.BatchNorm()] if normalised else []))
        self.body.add(nn.Activation("relu"), nn.MaxPool2D())
        self.body.add(nn.Dense(16, activation="tanh"), nn.Dropout(dropout))
        self.kind, self.size = nn.Dense(3), nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        kind = self.kind(features)
        if mx.autograd.is_training():
            return kind, self.size(features)
        return kind, self.size(features), F.argmax(kind, axis=1)


def make_spec(**changes: Any) -> TaskSpec:
    kinds = {"kind": gluon.loss.SoftmaxCrossEntropyLoss(), "size": LossSpec(gluon.loss.L2Loss(), weight=0.5)}
    accuracy = {"accuracy": MetricSpec(mx.metric.Accuracy(), "kind", "kind")}
    declared = {"inputs": ["image"], "labels": ["kind", "size"], "losses": kinds, "metrics": accuracy}
    evaluating = TaskSpec(**declared, outputs=["kind", "size", "best"], unused=["best"])
    return TaskSpec(**{**declared, "outputs": ["kind", "size"], "evaluate": evaluating, **changes})


def batches(count: int = 5) -> list[tuple[np.ndarray, ...]]:
    random = np.random.RandomState(0)
    images = [random.randn(8, 1, 6, 6).astype("float32") for _ in range(count)]
    return [(x, x[:, 0, 0, :3].argmax(axis=1).astype("float32"), x[:, 0, 1, :1] * 2) for x in images]


def make(precision: str = "bfloat16", devices: int = 1, net: Any = None, **options: Any) -> MultiEstimator:
    seed_everything(0)
    net = Net() if net is None else net
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainers = {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 2e-3}, clip_norm=1.0),
        "heads": TrainerSpec("(kind|size).*", "sgd", {"learning_rate": 0.02}),
    }
    contexts = [mx.cpu(i) for i in range(devices)]
    return MultiEstimator(net, make_spec(), trainers, contexts, precision=precision, **options)


def parameters(estimator: Any) -> dict[str, Any]:
    return {n: [d.asnumpy() for d in p.list_data()] for n, p in estimator._engine.parameters.items()}


def equal(one: Any, other: Any) -> bool:
    pair = parameters(one), parameters(other)
    return all((a == b).all() for name in pair[0] for a, b in zip(pair[0][name], pair[1][name]))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("handlers", [list, lambda: [GradientAccumulation(2)]], ids=["plain", "accumulated"])
@pytest.mark.parametrize("normalised", [True, False])  # without BatchNorm graphs are made ready wholly
def test_it_trains_as_float32_does_but_for_the_rounding(devices, handlers, normalised):
    histories = []
    for precision in (
        "float32",
        "bfloat16",
    ):  # one behind the other: a net gets its values in its first batch
        estimator = make(precision, devices, Net(normalised=normalised))
        histories.append(estimator.fit(batches(), batches(), epochs=3, event_handlers=handlers()))
    for name in ("train_loss", "train_kind", "train_size", "val_loss"):
        expected, found = (np.array(history[name]) for history in histories)
        assert (expected != found).any(), "it did not compute in bfloat16 at all"
        # relative where losses are large, absolute where they are small: errors do not shrink with a loss
        np.testing.assert_allclose(found, expected, rtol=CLOSE, atol=CLOSE)
    assert histories[1]["train_loss"][-1] < histories[1]["train_loss"][0]


def test_parameters_and_gradients_and_all_that_comes_out_are_float32(tmp_path):
    estimator = make()
    estimator.fit(batches(), epochs=1)
    for parameter in estimator._engine.parameters.values():
        assert np.dtype(parameter.dtype) == np.float32 and parameter.data().dtype == np.float32
        assert parameter.grad_req == "null" or parameter.grad().dtype == np.float32
    found = estimator.predict(batches()[0][:1])
    assert {name: array.dtype.name for name, array in found.items()} == dict.fromkeys(found, "float32")
    estimator.export(tmp_path)
    assert "amp_cast" not in (tmp_path / "net-symbol.json").read_text()
    record = json.loads((tmp_path / "export.json").read_text())
    assert {output["dtype"] for output in record["outputs"]} == {"float32"}


def test_evaluating_and_predicting_compute_in_it_too():
    low, full = make(), make("float32", net=Net())
    for estimator in (low, full):
        estimator.check(batches())
    for name, parameter in low._engine.parameters.items():
        parameter.set_data(full._engine.parameters[name].data())
    figures = [estimator.evaluate(batches())["loss"] for estimator in (low, full)]
    assert 0 < abs(figures[0] - figures[1]) < CLOSE * figures[1]
    outputs = [estimator.predict(batches()[0][:1])["kind"] for estimator in (low, full)]
    assert (outputs[0] != outputs[1]).any()
    np.testing.assert_allclose(outputs[0], outputs[1], atol=CLOSE * np.abs(outputs[1]).max())


def namespaces() -> dict[tuple[str, str], int]:
    modules = {"nd": mx.nd, "sym": mx.sym, "nd.op": mx.nd.op, "sym.op": mx.sym.op, "F": mx.nd._internal}
    return {(at, name): id(value) for at, module in modules.items() for name, value in vars(module).items()}


def test_nothing_else_in_the_process_changes():
    """MXNet's own amp.init replaces its operators everywhere, and cannot be undone."""
    other, image = Net(), mx.nd.array(batches()[0][0])
    other.initialize()
    before, functions = [array.asnumpy() for array in other(image)], namespaces()
    estimator = make()
    estimator.fit(batches(), batches(), epochs=2)
    assert namespaces() == functions
    assert all((a.asnumpy() == b).all() for a, b in zip(other(image), before))
    assert all(array.dtype == np.float32 for array in estimator.net(image))
    assert equal_after_float32(estimator, image)


def equal_after_float32(estimator: Any, image: Any) -> bool:
    """Whether the user's own net computes in float32, as one that was never lowered with its parameters."""
    twin = Net()
    twin.initialize()
    twin(image)
    for own, theirs in zip(twin.collect_params().values(), estimator.net.collect_params().values()):
        own.set_data(theirs.data())
    return all((a.asnumpy() == b.asnumpy()).all() for a, b in zip(twin(image), estimator.net(image)))


def test_float32_is_what_it_always_was():
    one, other = make("float32"), make()
    other = MultiEstimator(one.net, make_spec())
    assert one._engine.precision == other._engine.precision and other._engine.precision.rules is None
    plan = str(make("float32").check(batches()))
    assert "float32" not in plan.split("\n")[0] and "operators of the net" not in plan


def test_the_plan_and_the_log_say_it(caplog):
    with caplog.at_level("INFO", logger="multifit"):
        estimator = make()
        plan = estimator.check(batches(), batches())
        estimator.fit(batches(), epochs=1)
    text = str(plan)
    assert text.startswith("batches of 8 on cpu(0), computed in bfloat16\n")
    assert text.count("; 8 operators of the net in bfloat16") == 2
    assert type(plan).from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    told = [line for line in caplog.messages if line.startswith("precision")]
    assert told == [
        "precision: bfloat16 (Convolution, FullyConnected and what is between them); parameters and losses "
        "in float32"
    ]


def test_a_plan_of_before_is_one_of_float32():
    kept = make("float32").check(batches()).to_dict()
    del kept["precision"]
    assert type(make().check(batches())).from_dict(kept).precision == "float32"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("bfloat", 'precision is \'bfloat\' (did you mean "bfloat16"?); valid are "float32", "bfloat16"'),
        ("float_32", 'precision is \'float_32\' (did you mean "float32"?)'),
        (16, 'precision is 16; valid are "float32"'),
        (None, 'precision is None; valid are "float32"'),
        ("float16", 'precision is \'float16\' (did you mean "bfloat16"?); valid are "float32", "bfloat16"'),
    ],
)  # fmt: skip
def test_a_wrong_one_is_refused_at_once(given, said):
    with pytest.raises(ValueError) as caught:
        make(given)
    assert str(caught.value).startswith(said)


def test_bfloat16_on_a_gpu_is_an_error():
    """Also on a machine without a GPU."""
    from multifit.gluon.precision.precision import precision_of

    gpus = [mx.gpu(0), mx.gpu(1)]
    for contexts in (gpus, [mx.cpu(1), *gpus]):
        with pytest.raises(ValueError, match=r'on gpu\(0\); give precision="float32", or a context of CPUs'):
            precision_of("bfloat16", contexts)
    assert precision_of("float32", gpus).rules is None


class OnArrays(Net):
    """One of a toolkit, whose forward() looks at an array."""

    __module__ = "gluoncv.model_zoo"

    def forward(self, image: Any) -> Any:
        assert image.shape[1] == 1  # a symbol has no shape
        return super().forward(image)


class OwnForward(Net):
    def forward(self, image: Any) -> Any:
        return super().forward(image)


class NoProduct(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return F.mean(self.words(F.clip(image, 0, 3)), axis=(1, 2, 3)), F.sum(image, axis=(1, 2, 3))


def hybridized(net: Any, hybrid: bool = True, **spec: Any) -> Callable[[], MultiEstimator]:
    def build() -> MultiEstimator:
        net.initialize()
        net.hybridize(hybrid)
        return MultiEstimator(net, make_spec(evaluate=None, **spec), precision="bfloat16")

    return build


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (hybridized(Net(), hybrid=False), " cannot compute in bfloat16, as it is not hybridized; call "
                                          'net.hybridize(), or take precision="float32"'),
        (hybridized(Net(), forward=lambda net, slots: net(slots["image"])), "as the TaskSpec's forward= "
         "calls it; do what that does in a HybridBlock's hybrid_forward"),
        (hybridized(OwnForward()), "as it has a forward or hooks of its own; write it as a hybrid_forward"),
        (hybridized(OnArrays()), "as tracing it fails (AttributeError: 'Symbol' object has no attribute "
         "'shape'); write it as"),
        (hybridized(NoProduct()), "as it has none of Convolution, FullyConnected, which alone do"),
    ],
    ids=["not hybridized", "forward=", "own forward", "on arrays", "no product"],
)  # fmt: skip
def test_a_net_that_cannot_is_refused_and_nothing_moves(build, said):
    estimator = build()
    for call in (estimator.check, lambda data: estimator.fit(data, epochs=1), estimator.predict):
        with pytest.raises(SpecError) as caught:
            call(batches())
        assert said in str(caught.value)
        estimator._engine.renew()
    assert estimator.state.step == 0


def test_an_evaluation_that_cannot_is_refused_before_the_first_update():
    evaluating = make_spec(evaluate=None, forward=lambda net, slots: net(slots["image"])[:2])
    net = Net()
    net.initialize()
    net.hybridize()
    estimator = MultiEstimator(net, make_spec(evaluate=evaluating), precision="bfloat16")
    with pytest.raises(
        SpecError, match="the net when evaluating cannot compute in bfloat16, as the TaskSpec's"
    ):
        estimator.fit(batches(), batches(), epochs=1)
    assert estimator.state.step == 0


def run(folder: Path, epochs: int, precision: str = "bfloat16", **options: Any) -> MultiEstimator:
    estimator = make(precision, net=Net(0.3))
    handler = CheckpointHandler(folder, Every(1, "epoch"), seed=0)
    estimator.fit(batches(), batches(), epochs=epochs, event_handlers=handler, **options)
    return estimator


def test_a_run_that_is_resumed_ends_bit_for_bit(tmp_path):
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "part", 2)
    assert equal(whole, run(tmp_path / "part", 4, resume=tmp_path / "part"))


def test_a_checkpoint_of_another_precision_is_another_runs(tmp_path):
    run(tmp_path, 1)
    with pytest.raises(ValueError, match="precision bfloat16 in the checkpoint, float32 here"):
        run(tmp_path, 2, "float32", resume=tmp_path)


def test_a_handler_that_changes_outputs_gets_float32(tmp_path):
    class Seen:
        dtypes: set[Any] = set()

        def change_outputs(self, estimator: Any, outputs: Any, **facts: Any) -> Any:
            self.dtypes |= {np.dtype(array.dtype).name for array in outputs.values()}
            return outputs

    estimator, seen = make(), Seen()
    estimator.fit(batches(), epochs=1, event_handlers=seen)
    assert seen.dtypes == {"float32"} and estimator._engine.stages["train"].network.lowered == 8
