"""What ``multifit tasks`` measures: exact gradients, affinities by hand, and a training as without it."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import Sum, UPGrad
from multifit.cli.task_gradients import TaskGradients
from multifit.cli.tasks import LONGER, METHODS, OPPOSED
from multifit.sampling import RoundRobin
from tests.common.compare import assert_same_parameters, snapshot
from tests.common.data import digit_batches
from tests.common.hand_loop import SILENT
from tests.common.nets import Heads, hybridized, sequential
from tests.common.shared_nets import Skips, three_tasks
from tests.common.specs import BCE, CE, L2, digit_spec

import mxnet as mx  # isort: skip
from mxnet import autograd, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

ENGINES = ["mxnet", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="torch"))]
BATCHES = digit_batches([12, 12, 8])
MOVING = "sgd", {"learning_rate": 0.1, "momentum": 0.9}
ADAM = "adam", {"learning_rate": 0.05}


def heads(*layers: Any) -> Any:
    return hybridized(Heads(body=sequential(nn.Dense(8, in_units=10), *layers), digit=5, parity=1))


def estimator(net: Any, spec: TaskSpec, engine: str = "mxnet", **options: Any) -> MultiEstimator:
    mx.random.seed(5)
    net.initialize(mx.init.Xavier(), ctx=options.get("context", mx.cpu()), force_reinit=True)
    net(nd.zeros((2, 10), ctx=options.get("context", [mx.cpu()])[0]))
    options = {"trainers": TrainerSpec(".*", *MOVING), **options}
    return MultiEstimator(net, spec, engine=engine, **options)


def looked(net: Any, spec: TaskSpec, data: Any = BATCHES, **options: Any) -> tuple[TaskGradients, Any]:
    """Return what was measured in an epoch, and the estimator."""
    look = TaskGradients(options.pop("affinity", False))
    look.names, look.take_turns = [term.key for term in spec.terms], isinstance(data, dict)
    made = estimator(net, spec if look.take_turns else look.restricted(spec), **options)
    sampling = RoundRobin() if look.take_turns else None
    made.fit(data, epochs=1, event_handlers=[*SILENT, look], sampling=sampling)
    return look, made


TWO = {"context": [mx.cpu(0), mx.cpu(1)]}
CASES = {
    "branches at several places": (lambda: hybridized(Skips()), three_tasks, {}),
    "running statistics": (lambda: heads(nn.BatchNorm(in_channels=8)), digit_spec, {}),
    "missing labels": (heads, lambda: digit_spec(labels=[LabelSpec("digit", missing=2), "parity"]), {}),
    "a weight that changes": (heads, lambda: digit_spec(parity=lambda state: 0.5 + state.step), {}),
    "two devices": (heads, digit_spec, TWO),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_figures_of_sum_on_parameters_and_changes_nothing(case: str, engine: str) -> None:
    make, spec, options = CASES[case]
    if engine == "torch" and options:
        pytest.skip("one device")
    look, made = looked(make(), spec(), engine=engine, **options)
    other = estimator(make(), spec(), engine, balance=Sum(on="parameters"), **options)
    history = other.fit(BATCHES, epochs=1, event_handlers=SILENT)
    lengths, cosines, *_ = look.summary()
    for i, one in enumerate(look.names):
        assert lengths[i] == pytest.approx(history[f"train_gradnorm_{one}"][0], rel=1e-4)
        for j, two in list(enumerate(look.names))[i + 1 :]:
            assert cosines[i, j] == pytest.approx(history[f"train_cosine_{one}_{two}"][0], abs=1e-5)
    learnt = {name: each for name, each in snapshot(other.net).items() if "running" not in name}
    assert all(np.allclose(snapshot(made.net)[name], each, atol=1e-5) for name, each in learnt.items())


@pytest.mark.parametrize("engine", ENGINES)
def test_all_tasks_see_the_same_dropout(engine: str) -> None:
    twice = digit_spec(losses={"one": LossSpec(CE, "digit", "digit"), "two": LossSpec(CE, "digit", "digit")},
                       unused=["parity", "outputs.parity"])  # fmt: skip
    look, _ = looked(heads(nn.Dropout(0.5)), twice, engine=engine)
    assert look.summary()[1][0, 1] == pytest.approx(1, abs=1e-6)


def test_what_is_not_compared_is_nan() -> None:
    class Apart(nn.HybridBlock):
        """Two pairs of tasks, each with a body of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Dense(4, in_units=10), nn.Dense(4, in_units=10)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            left, right = self.left(x), self.right(x)
            return F.sum(left, axis=1), F.sum(left**2, axis=1), F.sum(right, axis=1)

    names = ["a", "b", "c"]
    spec = TaskSpec(
        inputs=["x"], outputs=names, labels=["digit", "parity"], unused=["digit"],
        losses={name: LossSpec(L2, name, "parity") for name in names},
    )  # fmt: skip
    look, _ = looked(hybridized(Apart()), spec)
    lengths, cosines, opposed, _ = look.summary()
    assert np.isnan([lengths[2], cosines[0, 2], cosines[2, 1], opposed[2]]).all()
    assert not np.isnan([*lengths[:2], cosines[0, 1], *opposed[:2]]).any()
    assert look.shared == ["left.weight", "left.bias"]
    look.chosen = ["left.bias"]
    assert look.shared == ["left.bias"]


TURNS = {
    "digit": [(x, digit) for x, digit, _ in BATCHES],
    "parity": [(x, parity) for x, _, parity in BATCHES],
}


@pytest.mark.parametrize("engine", ENGINES)
def test_loaders_that_take_turns_train_as_without_it(engine: str) -> None:
    """The gradients are those of the same batches with both labels; the updates, those of turns."""
    look, made = looked(heads(), digit_spec(), TURNS, engine=engine)
    plain = estimator(heads(), digit_spec(), engine)
    plain.fit(TURNS, epochs=1, sampling=RoundRobin(), event_handlers=SILENT)
    assert_same_parameters(made.net, plain.net)
    joint, _ = looked(heads(), digit_spec())
    np.testing.assert_allclose(look.gramians[0], joint.gramians[0], rtol=1e-4)
    assert len(look.gramians) == 3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", [("sgd", {"learning_rate": 0.1}), MOVING, ADAM])
def test_affinity_equals_a_step_by_hand(optimizer: Any, engine: str, tmp_path: Any) -> None:
    """In the second batch, as there is momentum by then; the heads do not move, and the step is undone."""
    options = {"engine": engine, "trainers": TrainerSpec(".*", *optimizer)}
    look, made = looked(
        heads(nn.BatchNorm(in_channels=8)), digit_spec(), BATCHES[:2], affinity=True, **options
    )
    _, plain = looked(heads(nn.BatchNorm(in_channels=8)), digit_spec(), BATCHES[:2], **options)
    assert_same_parameters(made.net, plain.net)
    of_mxnet = {**options, "engine": "mxnet"}
    _, by_hand = looked(heads(nn.BatchNorm(in_channels=8)), digit_spec(), BATCHES[:1], **of_mxnet)
    net, trainer = by_hand.net, by_hand.trainers["trainer"].trainer
    x, digit, parity = map(nd.array, BATCHES[1])

    def losses() -> tuple[Any, Any]:
        with autograd.record():
            outputs = net(x)
            return CE(outputs[0], digit).mean(), 0.5 * BCE(outputs[1], parity).mean()

    parameters = net._collect_params_with_prefix()
    before = {name: each.data().asnumpy() for name, each in parameters.items()}
    states = str(tmp_path / "states")
    trainer.save_states(states)

    def after(task: int, given: bool) -> Any:
        """Return the losses after a step."""
        losses()[task].backward()
        for name, each in parameters.items():
            if each.grad_req != "null":
                each.data()._fresh_grad = True
                if not given or not name.startswith("body"):
                    each.grad()[:] = 0
        trainer.step(1, ignore_stale_grad=True)
        found = np.array([loss.asscalar() for loss in losses()])
        trainer.load_states(states)
        for name, each in parameters.items():
            each.set_data(nd.array(before[name]))
        return found

    expected = [1 - after(task, True) / after(task, False) for task in range(2)]
    np.testing.assert_allclose(look._changes[1], expected, atol=2e-5)
    assert np.abs(expected).max() > 1e-3


def competing(weight: float) -> tuple[Any, TaskSpec, list[Any]]:
    """Return a net with one shared feature, and two tasks that want others, 60 degrees apart."""
    random = np.random.RandomState(1)
    x = random.randn(64, 10).astype("float32")
    small, large = x[:, :1], (0.5 * x[:, :1] + 0.87 * x[:, 1:2]) * weight
    net = hybridized(Heads(body=nn.Dense(1, in_units=10, use_bias=False), small=1, large=1))
    spec = TaskSpec(
        inputs=["x"], outputs=["small", "large"], labels=["small", "large"], losses={"small": L2, "large": L2}
    )
    return net, spec, [(x, small, large)]


@pytest.mark.parametrize(("weight", "helps"), [(30, True), (1, False)])
def test_what_the_advice_names_beats_the_sum_where_it_is_given(weight: float, helps: bool) -> None:
    """The losses are relative to those of the mean, so that both tasks count alike."""
    options = {"trainers": TrainerSpec(".*", *ADAM)}
    net, spec, batches = competing(weight)
    look, _ = looked(net, spec, batches * 20, **options)
    lengths, _, opposed, _ = look.summary()
    assert (opposed[0] > OPPOSED) == helps and lengths[1] > LONGER * lengths[0]
    losses = []
    assert "UPGrad(normalize=True)" in METHODS
    for balance in (None, UPGrad(normalize=True)):
        net, spec, batches = competing(weight)
        made = estimator(net, spec, balance=balance, **options)
        made.fit(batches, epochs=100, event_handlers=SILENT)
        figures = made.evaluate(batches, event_handlers=SILENT)
        sizes = {name: (each**2).mean() / 2 for name, each in zip(spec.labels, batches[0][1:])}
        losses.append(np.mean([figures[name] / size for name, size in sizes.items()]))
    assert (losses[1] < losses[0] - 0.05) == helps
