"""A lower precision: the same training but for rounding, and nothing else in the process changes.

"float16" stands for a lower precision that every CPU can compute; see the fixture `float16_activations`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from multifit import Every, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.gluon.graph import lower as precisions
from multifit.handlers import CheckpointHandler
from multifit.utils.seeding import seed_everything
from tests.common.compare import copy_parameters
from tests.common.handlers import handler
from tests.common.nets import Heads, hybridized, sequential
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE, L2

pytestmark = pytest.mark.usefixtures("float16_activations")


# bfloat16 has 8 significant bits: rounding to nearest is wrong by at most 2^-9 of the number. Each of the
# net's four products rounds its input, its weights and its output: 12 independent roundings.
CLOSE = 12**0.5 * 2.0**-9


def form(kind: Any, size: Any) -> tuple[Any, ...]:
    """Evaluated, the net returns one output more, as SSD does."""
    return (kind, size) if mx.autograd.is_training() else (kind, size, kind.argmax(axis=1))


def new_net(dropout: float = 0.0, normalised: bool = True, kind: type[Heads] = Heads) -> Heads:
    """Return a net with convolution, BatchNorm and two heads."""
    body = sequential(
        nn.Conv2D(8, 3, padding=1), *([nn.BatchNorm()] if normalised else []), nn.Activation("relu"),
        nn.MaxPool2D(), nn.Dense(16, activation="tanh"), nn.Dropout(dropout),
    )  # fmt: skip
    return kind(form, body=body, kind=3, size=1)


def make_spec(**changes: Any) -> TaskSpec:
    losses = {"kind": CE, "size": LossSpec(L2, weight=0.5)}
    accuracy = {"accuracy": MetricSpec(mx.metric.Accuracy(), "kind", "kind")}
    declared = {"inputs": ["image"], "labels": ["kind", "size"], "losses": losses, "metrics": accuracy}
    evaluation = TaskSpec(**declared, outputs=["kind", "size", "best"], unused=["best"])
    return TaskSpec(**{**declared, "outputs": ["kind", "size"], "evaluate": evaluation, **changes})


def batches(count: int = 5) -> list[tuple[np.ndarray, ...]]:
    random = np.random.RandomState(0)
    images = [random.randn(8, 1, 6, 6).astype("float32") for _ in range(count)]
    return [(x, x[:, 0, 0, :3].argmax(axis=1).astype("float32"), x[:, 0, 1, :1] * 2) for x in images]


def make(
    precision: str = "float16", devices: int = 1, net: Any = None, accumulate: int = 1
) -> MultiEstimator:
    seed_everything(0)
    net = hybridized(new_net() if net is None else net)
    net.initialize(mx.init.Xavier())
    trainers = {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 2e-3}, clip_norm=1.0),
        "heads": TrainerSpec("(kind|size).*", "sgd", {"learning_rate": 0.02}),
    }
    contexts = [mx.cpu(i) for i in range(devices)]
    return MultiEstimator(net, make_spec(), trainers, contexts, precision=precision, accumulate=accumulate)


@pytest.mark.parametrize(
    ("precision", "devices", "accumulate", "normalised"),  # graphs without BatchNorm are prepared otherwise
    [
        ("float16", 1, 2, False), ("float16", 2, 1, True),
        pytest.param("bfloat16", 1, 1, True, marks=pytest.mark.bfloat16),
    ],
)  # fmt: skip
def test_training_equals_float32_but_for_rounding(precision, devices, accumulate, normalised):
    histories = []
    for name in ("float32", precision):  # one after the other: the first batch initialises the net
        estimator = make(name, devices, new_net(normalised=normalised), accumulate)
        histories.append(estimator.fit(batches(), batches(), epochs=2))
    for name in ("train_loss", "train_kind", "train_size", "val_loss"):
        expected, values = (np.array(history[name]) for history in histories)
        assert (expected != values).any(), f"nothing was computed in {precision}"
        # Relative for large losses, absolute for small ones: errors do not shrink with a loss.
        np.testing.assert_allclose(values, expected, rtol=CLOSE, atol=CLOSE)
    assert histories[1]["train_loss"][-1] < histories[1]["train_loss"][0]


def test_parameters_gradients_and_outputs_are_float32(tmp_path: Path) -> None:
    dtypes: set[str] = set()

    def look(estimator: Any, outputs: Any) -> None:
        dtypes.update(np.dtype(array.dtype).name for array in outputs.values())

    estimator = make()
    estimator.fit(batches(), epochs=1, event_handlers=handler(change_outputs=look))
    assert dtypes == {"float32"}
    for parameter in estimator.net.collect_params().values():
        assert np.dtype(parameter.dtype) == np.float32 and parameter.data().dtype == np.float32
        assert parameter.grad_req == "null" or parameter.grad().dtype == np.float32
    assert {array.dtype for array in estimator.predict(batches()[0][:1]).values()} == {np.dtype("float32")}
    estimator.export(tmp_path)
    assert "amp_cast" not in (tmp_path / "net-symbol.json").read_text()
    record = json.loads((tmp_path / "export.json").read_text())
    assert {output["dtype"] for output in record["outputs"]} == {"float32"}


def test_evaluation_and_prediction_use_it_too():
    low, full = make(), make("float32")
    for estimator in (low, full):
        estimator.check(batches())
    copy_parameters(full.net, low.net)
    losses = [estimator.evaluate(batches())["loss"] for estimator in (low, full)]
    assert 0 < abs(losses[0] - losses[1]) < CLOSE * losses[1]
    outputs = [estimator.predict(batches()[0][:1])["kind"] for estimator in (low, full)]
    assert (outputs[0] != outputs[1]).any()
    np.testing.assert_allclose(outputs[0], outputs[1], atol=CLOSE * np.abs(outputs[1]).max())


def operators() -> dict[tuple[str, str], int]:
    modules = {"nd": mx.nd, "sym": mx.sym, "nd.op": mx.nd.op, "sym.op": mx.sym.op, "F": mx.nd._internal}
    return {(at, name): id(value) for at, module in modules.items() for name, value in vars(module).items()}


def test_nothing_else_in_the_process_changes():
    """MXNet's own amp.init replaces its operators everywhere, for good."""
    other, image = new_net(), mx.nd.array(batches()[0][0])
    other.initialize()
    outputs_before, operators_before = [array.asnumpy() for array in other(image)], operators()
    estimator = make()
    estimator.fit(batches(), batches(), epochs=2)
    assert operators() == operators_before
    assert all((a.asnumpy() == b).all() for a, b in zip(other(image), outputs_before))
    # The user's own net still computes in float32, like a net with the same parameters.
    copy_parameters(estimator.net, other)
    assert all((a.asnumpy() == b.asnumpy()).all() for a, b in zip(other(image), estimator.net(image)))


def test_the_plan_and_the_log_mention_it(caplog):
    with caplog.at_level("INFO", logger="multifit"):
        estimator = make()
        plan = estimator.check(batches(), batches())
        estimator.fit(batches(), epochs=1)
    assert str(plan).startswith("batches of 8 on cpu(0), computed in float16\n")
    assert " ".join(str(plan).split()).count("; 3 operators of the net in float16") == 2
    assert [line for line in caplog.messages if line.startswith("precision")] == [
        "precision: float16 (Activation and what is between them); parameters and losses in float32"
    ]
    plan = make("float32").check(batches())
    assert "float32" not in str(plan).split("\n")[0] and "operators of the net" not in str(plan)


def test_an_unusable_precision_is_an_error_at_once(monkeypatch):
    with pytest.raises(ValueError, match=r"precision is 'bfloat' .*valid are"):
        make("bfloat")
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=r"this CPU .*precision=\"float32\""):
        make("bfloat16")


class OnArrays(Heads):
    """A toolkit's net, whose forward() needs an array's shape."""

    __module__ = "gluoncv.model_zoo"

    def forward(self, image: Any) -> Any:
        assert image.shape[1] == 1  # a symbol has no shape
        return super().forward(image)


class OwnForward(Heads):
    def forward(self, image: Any) -> Any:
        return super().forward(image)


class NoProduct(gluon.HybridBlock):
    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return F.mean(image, axis=(2, 3)), F.sum(image, axis=(1, 2, 3))


FORWARD = {"forward": lambda net, slots: net(slots["image"])[:2]}
# nets, whether they are hybridized, fields of the spec, and what the message says
NOT_LOWERED: dict[str, tuple[Callable[[], Any], bool, dict[str, Any], str]] = {
    "not hybridized": (new_net, False, {},
        ' cannot compute in bfloat16, as it is not hybridized; call net.hybridize(), or use '
        'precision="float32"'),
    "forward=": (new_net, True, FORWARD,
        "as the TaskSpec's forward= calls it; do what that does in a HybridBlock's hybrid_forward"),
    "own forward": (lambda: new_net(kind=OwnForward), True, {},
        "as it has a forward or hooks of its own; write it as a hybrid_forward"),
    "on arrays": (lambda: new_net(kind=OnArrays), True, {},
        "as tracing it fails (AttributeError: 'Symbol' object has no attribute 'shape'); write it as"),
    "no product": (
        NoProduct, True, {}, "as only Convolution, FullyConnected do, and it has none of them; leave"),
    "when evaluating": (new_net, True, {"evaluate": make_spec(evaluate=None, **FORWARD)},
        "the net when evaluating cannot compute in bfloat16, as the TaskSpec"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_LOWERED)
def test_a_net_that_cannot_be_lowered_is_an_error_before_training(case: str) -> None:
    make_net, hybrid, spec, message = NOT_LOWERED[case]
    net = hybridized(make_net(), hybrid)
    net.initialize()
    estimator = MultiEstimator(net, make_spec(**{"evaluate": None, **spec}), precision="bfloat16")
    data = batches()
    for call in (
        lambda: estimator.check(data, data),
        lambda: estimator.fit(data, data, epochs=1),
        lambda: estimator.predict(data),
    ):
        with pytest.raises(SpecError) as error:
            call()
        assert message in str(error.value)
        estimator._session.restart()
    assert estimator.state.step == 0


def test_a_resumed_run_ends_bit_for_bit_and_only_in_its_own_precision(tmp_path: Path) -> None:
    def run(folder: Path, *handlers: Any, precision: str = "float16", **options: Any) -> MultiEstimator:
        estimator = make(precision, net=new_net(0.3))
        saving = CheckpointHandler(folder, Every(1, "epoch"), seed=0)
        estimator.fit(batches(), epochs=2, event_handlers=[saving, *handlers], **options)
        return estimator

    assert_resumes_bit_for_bit(run, tmp_path, 7)
    with pytest.raises(ValueError, match='precision: "float16" in the checkpoint, "float32" here'):
        run(tmp_path / "7", precision="float32", resume=tmp_path / "7")
