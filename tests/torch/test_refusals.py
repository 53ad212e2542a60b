"""What cannot be bridged is refused by name, with a way out, by the constructor; and nothing moves.

What shapes decide is refused with the first batch, and what values decide with the batch that has them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LossSpec, MetricSpec, MultiEstimator, SpecError, TrainerError, TrainerSpec
from multifit.gluon.compat import mx
from tests.common.data import in_batches
from tests.common.nets import sequential
from tests.common.specs import CE, L2, one_loss_spec, two_head_spec
from tests.torch.runs import ARRAYS, BATCHES, estimator_of

nn, loss = mx.gluon.nn, mx.gluon.loss
SGD = TrainerSpec(".*", "sgd")
WAY_OUT = 'use engine="mxnet"'


def hooked() -> Any:
    net = nn.Dense(3)
    net.register_forward_hook(lambda *call: None)
    return net


def several_faults() -> Any:
    """A layer in float16, one of sparse gradients, and one whose gradients add up."""
    low, adding = nn.Dense(2), nn.Dense(3)
    low.cast("float16")
    adding.weight.grad_req = "add"
    return sequential(low, nn.Embedding(3, 2, sparse_grad=True), adding)


NETS: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "a hook": (hooked, SpecError, ['"the net" has hooks; detach them']),
    "a hook of a layer": (lambda: sequential(hooked()), SpecError, ['"0" has hooks; detach them']),
    "parameters": (several_faults, TrainerError, [
        '"1.weight" have sparse gradients; use dense layers',
        '"0.weight", "0.bias" are neither float32 nor float64; call net.cast("float32")',
        '"2.weight" have grad_req="add"; give MultiEstimator(accumulate=...)',
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_nets(name: str) -> None:
    make, error, messages = NETS[name]
    with pytest.raises(error) as caught:
        MultiEstimator(make(), one_loss_spec(CE), SGD, engine="torch")
    for message in [*messages, WAY_OUT]:
        assert message in str(caught.value)


def asks_for_numbers(output: Any, label: Any) -> Any:
    return output * float(label.asnumpy().mean())


def test_losses_are_refused_together() -> None:
    own_gradients = nn.HybridLambda(lambda F, x, y: F.SoftmaxOutput(x, y))
    losses = {
        asks_for_numbers: "cannot become a graph: .*asnumpy is not implemented for Symbol.*use F's operators",
        loss.SDMLLoss(): "cannot become a graph: .*use F's operators",
        own_gradients: r": the operator SoftmaxOutput \(1 node, .* has no translation; use other operators",
        nn.HybridLambda(lambda F, x, y: F.khatri_rao(x, y)): ": the operator khatri_rao .1 node",
    }
    declared = {f"l{i}": LossSpec(fn, "digit", "digit") for i, fn in enumerate(losses)}
    with pytest.raises(SpecError) as caught:
        estimator_of(spec=two_head_spec(losses={"size": L2, **declared}))
    for (i, message), problem in zip(enumerate(losses.values()), caught.value.problems, strict=True):
        with pytest.raises(SpecError, match=rf'losses\["l{i}"\]:? ?{message}.*{WAY_OUT}'):
            raise SpecError(problem.message)


@mx.optimizer.register
class Unknown(mx.optimizer.SGD):
    """An optimizer of the user's own."""


def foreign() -> Any:
    other = nn.Dense(2, in_units=2)
    other.initialize()
    return mx.gluon.Trainer(other.collect_params(), "sgd")


AN_OWN_ADAM = type("AdamW", (mx.optimizer.SGD,), {})
TRAINERS: dict[str, Callable[[], Any]] = {
    f"LBSGD has no translation .supported are .*{WAY_OUT}": lambda: TrainerSpec(".*", "lbsgd"),
    f"Unknown has no translation .supported are .*{WAY_OUT}": lambda: TrainerSpec(".*", "unknown"),
    f"AdamW has no translation .supported are .*{WAY_OUT}": lambda: TrainerSpec(".*", AN_OWN_ADAM()),
    r"there is no optimizer 'adm' \(did you mean .adam.": lambda: TrainerSpec(".*", "adm"),
    "unknown option": lambda: TrainerSpec(".*", "sgd", {"momentun": 0.9}),
    "selects none of the net's parameters": lambda: TrainerSpec(nn.Dense(2)),
    "holds parameters that the net does not have": foreign,
}


@pytest.mark.parametrize("message", TRAINERS)
def test_trainers(message: str) -> None:
    with pytest.raises(TrainerError, match=message):
        estimator_of(trainers=TRAINERS[message]())


def test_what_is_no_trainer() -> None:
    with pytest.raises(TrainerError, match="trainers: 3 is"):
        estimator_of(trainers=3).fit(BATCHES, epochs=1, event_handlers=[])


def test_a_metric_that_nobody_has() -> None:
    with pytest.raises(SpecError, match='there is no metric .rmsee. .did you mean "rmse"'):
        estimator_of(spec=two_head_spec(metrics={"m": MetricSpec("rmsee", "size", "size")}))


OTHER = nn.Dense(1)
GRAPH = "the net cannot become a graph: "
FIRST_BATCH: dict[str, Callable[..., Any]] = {
    f"{GRAPH}AttributeError: .*shape.*write it as a HybridBlock": lambda F, x: x * x.shape[0],
    f"{GRAPH}it returns int for symbols": lambda F, x: [x, 3],
    rf'{GRAPH}it reads "dense\d+_weight", .*which it does not hold; make the Block': lambda F, x: (
        x * OTHER(x)
    ),
    "the net: the operator khatri_rao .1 node.*no translation.*; use other": lambda F, x: F.khatri_rao(x, x),
}


@pytest.mark.parametrize("message", FIRST_BATCH)
def test_what_the_first_batch_shows_moves_nothing(message: str) -> None:
    data = [(np.ones((2, 6), "float32"), np.ones((2, 1), "float32"))]
    net = sequential(nn.Dense(3), nn.HybridLambda(FIRST_BATCH[message]))
    estimator = MultiEstimator(net, one_loss_spec(L2), SGD, engine="torch")
    for call in (estimator.check, lambda data: estimator.fit(data, epochs=1), estimator.predict):
        with pytest.raises(SpecError, match=f'engine="torch": {message}.*, or {WAY_OUT}'):
            call(data)


def test_forward_that_is_no_graph_is_refused_in_training() -> None:
    spec = two_head_spec(forward=lambda net, slots: net(slots["image"] * float(slots["image"].sum() > 0)))
    estimator = estimator_of(spec=spec)
    before = estimator.values()
    with pytest.raises(SpecError, match="forward=, with the net, cannot become a graph"):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    np.testing.assert_equal(estimator.values(), before)


def changed(name: str, places: Any, value: float) -> Any:
    arrays = {**ARRAYS, name: ARRAYS[name].copy()}
    arrays[name][places] = value
    return in_batches(arrays.values())


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
def test_labels_that_are_no_class_are_counted(engine: str) -> None:
    with pytest.raises(DataError, match='in training, the label "digit" held 3 values not among'):
        estimator_of(engine=engine).fit(changed("digit", [25, 26, 35], 7), epochs=1, event_handlers=[])


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
def test_one_hot_labels_are_no_class_indices(engine: str) -> None:
    one_hot = np.eye(int(ARRAYS["digit"].max()) + 1, dtype="float32")[ARRAYS["digit"].astype(int)]
    estimator = estimator_of(engine=engine)
    before = estimator.values()
    with pytest.raises(SpecError, match='label "digit" .* do not fit; .* need one class index each'):
        estimator.fit(in_batches({**ARRAYS, "digit": one_hot}.values()), epochs=1, event_handlers=[])
    np.testing.assert_equal(estimator.values(), before)


@pytest.mark.parametrize(
    ("place", "message"), [(1, "in sample 1 "), (35, r"NaN or infinity in 1 row, in \w+;")]
)
def test_numbers_that_are_not_finite_are_named(place: int, message: str) -> None:
    for call in (lambda data: estimator_of().fit(data, epochs=1, event_handlers=[]), estimator_of().evaluate):
        with pytest.raises(DataError, match=message):
            call(changed("image", place, -np.inf))
