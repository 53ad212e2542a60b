"""MXNet's optimizers on tensors: weights and states are MXNet's, in float64, while rates change."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multifit.gluon.compat import mx
from multifit.gluon.optim import own_optimizers  # noqa: F401 (registers them)
from multifit.torch.from_gluon.optimizer import MXNetOptimizer
from multifit.torch.from_gluon.rules import RULES

STEPS = 30
SHAPES = [(4, 3), (2, 5), (6, 1)]
MULTIPLIERS = [SimpleNamespace(lr_mult=1 + i / 2, wd_mult=2.0 - i) for i in range(len(SHAPES))]
COMMON: dict[str, dict[str, Any]] = {
    "plain": {},
    "decayed": {"wd": 0.1},
    "clipped": {"clip_gradient": 0.3, "wd": 0.1},
    "rescaled": {"rescale_grad": 0.5},
}
BELOW_0 = {"rmsprop": {"clip_weights": -0.6}, "lamb": {"lower_bound": -0.5, "upper_bound": -1.0}}
CLIPPED_IN_PYTHON = ["adadelta", "adagrad"]
TOLERANCE = 1e-6  # MXNet rounds options to float32
CASES: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in sorted(set(RULES) - {"bertadam"})],
    ("adam", {"epsilon": 1e-2, "beta1": 0.5, "beta2": 0.3}),
    ("adamw", {"epsilon": 1e-2, "beta1": 0.5, "beta2": 0.3}),
    ("lion", {"beta1": 0.3, "beta2": 0.7}),
    ("lamb", {"lower_bound": 0.5, "upper_bound": 1.0, "bias_correction": False}),
    ("nag", {"momentum": 0.9}),
    ("radam", {"beta2": 0.3}),
    ("rmsprop", {"clip_weights": 0.6}),
    ("rmsprop", {"centered": True}),
    ("sgd", {"momentum": 0.9}),
]


def on_tensors(weights: Any, name: str, **options: Any) -> MXNetOptimizer:
    multipliers = dict(zip(weights, MULTIPLIERS))
    made = mx.optimizer.create(name, **options)
    return MXNetOptimizer(weights, made, lambda each: multipliers.get(each, MULTIPLIERS[0]), {})


def after_steps(name: str, options: dict[str, Any], dtype: str = "float64") -> tuple[list[Any], list[Any]]:
    """Return weights and states after some steps: MXNet's, and the others."""
    random = np.random.RandomState(0)
    values = [random.randn(*shape).astype(dtype) for shape in SHAPES]
    theirs = mx.optimizer.create(name, **options)
    theirs.param_dict = dict(enumerate(MULTIPLIERS))
    weights, tensors = [mx.nd.array(each, dtype=dtype) for each in values], list(map(torch.tensor, values))
    states = [cast(theirs.create_state(i, weight), dtype) for i, weight in enumerate(weights)]
    ours = on_tensors(tensors, name, **options)
    for step in range(STEPS):
        theirs.lr = ours.param_groups[0]["lr"] = 0.1 / (1 + step % 4)
        for i, tensor in enumerate(tensors):
            gradient = random.randn(*SHAPES[i]).astype(dtype)
            theirs.update(i, weights[i], mx.nd.array(gradient, dtype=dtype), states[i])
            tensor.grad = torch.tensor(gradient)
        ours.step()
    ours_by_name = [
        [state[n] for n in sorted(state) if n != "step"] for state in map(ours.state.get, tensors)
    ]
    return [*weights, *states], [*tensors, *ours_by_name]


def cast(state: Any, dtype: str) -> Any:
    """Return a state in a dtype: MXNet makes some in float32, whatever the weight."""
    if isinstance(state, tuple):
        return tuple(cast(part, dtype) for part in state)
    return None if state is None else state.astype(dtype)


def assert_equal(theirs: Any, ours: Any, tolerance: float = TOLERANCE) -> None:
    if isinstance(ours, list):
        theirs = [] if theirs is None else theirs if isinstance(theirs, (list, tuple)) else [theirs]
        for one, other in zip(theirs, ours, strict=True):
            assert_equal(one, other, tolerance)
    else:
        np.testing.assert_allclose(ours.numpy(), theirs.asnumpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("common", COMMON)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_weights_and_states_are_mxnets(name: str, options: dict[str, Any], common: str) -> None:
    assert_equal(*after_steps(name, {**options, **COMMON[common]}))


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_bounds_below_0_are_none_as_in_mxnets_operators(name: str) -> None:
    expected, _ = after_steps(name, {})
    theirs, ours = after_steps(name, {"clip_gradient": -0.3, **BELOW_0.get(name, {})})
    assert_equal(expected, ours)
    if name not in CLIPPED_IN_PYTHON:
        assert_equal(theirs, ours)


@pytest.mark.parametrize("common", COMMON)
def test_bert_adam_is_gluonnlps(common: str) -> None:
    pytest.importorskip("gluonnlp")
    assert_equal(*after_steps("bertadam", COMMON[common], "float32"), 2e-4)
    assert set(RULES) <= set(mx.optimizer.Optimizer.opt_registry)


PEERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw without decay": (torch.optim.AdamW, {"weight_decay": 0.0}),
    "radam": (torch.optim.RAdam, {}),
    "radam with decay": (torch.optim.RAdam, {"weight_decay": 0.1}),
    "radam of few squares": (torch.optim.RAdam, {"betas": (0.9, 0.5)}),
}


@pytest.mark.parametrize("name", PEERS)
def test_numbers_and_defaults_are_torchs(name: str) -> None:
    """They differ by as much as MXNet's operators round their options, to float32."""
    kind, options = PEERS[name]
    random = np.random.RandomState(0)
    theirs = [torch.tensor(random.randn(4, 3)).requires_grad_()]
    ours = [theirs[0].detach().clone()]
    peer = kind(theirs, lr=0.01, **options)
    (beta1, beta2), decay = peer.defaults["betas"], options.get("weight_decay")
    declared = {"beta1": beta1, "beta2": beta2} | ({} if decay is None else {"wd": decay})
    mine = on_tensors(ours, name.split()[0], learning_rate=0.01, **declared)
    mine._multipliers = {ours[0]: SimpleNamespace(lr_mult=1.0, wd_mult=1.0)}
    for _ in range(STEPS):
        theirs[0].grad = ours[0].grad = torch.tensor(random.randn(4, 3))
        peer.step()
        mine.step()
    torch.testing.assert_close(ours[0], theirs[0].detach(), rtol=1e-6, atol=1e-7)


class Count(TorchDispatchMode):
    """Counts the operators that are called."""

    calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


MOST = {
    "lamb": {"lower_bound": 0.1, "upper_bound": 10.0},
    "nag": {"momentum": 0.9},
    "rmsprop": {"centered": True, "clip_weights": 1.0},
    "sgd": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_update_calls_no_more_operators_for_more_parameters(name: str) -> None:
    """And never waits for the device: this one has no values."""
    if name == "bertadam":
        pytest.importorskip("gluonnlp")
    calls = set()
    for count in (2, 20):
        weights = [torch.ones(2 + i, 3, device="meta") for i in range(count)]
        optimizer = on_tensors(
            weights, name, rescale_grad=0.5, clip_gradient=1.0, wd=0.1, **MOST.get(name, {})
        )
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()  # which makes the states
        with Count() as counted:
            optimizer.step()
        calls.add(counted.calls)
    assert len(calls) == 1 and calls != {0}


def test_a_closure_and_several_dtypes() -> None:
    parameters = [torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)]

    def closure() -> Any:
        loss = sum(each.sum().double() for each in parameters)
        loss.backward()
        return loss

    optimizer = MXNetOptimizer(parameters, mx.optimizer.SGD(learning_rate=1.0), lambda _: MULTIPLIERS[0], {})
    assert optimizer.step(closure).item() == 4
    assert [each.tolist() for each in parameters] == [[0, 0], [0, 0]]
