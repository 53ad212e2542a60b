"""Every rule updates as MXNet's optimizer does, in float64, while rates change."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.gluon.optim import own_optimizers  # noqa: F401 (registers them)
from multifit.torch.from_gluon.rules import RULES, Group

STEPS = 30
SHAPES = [(4, 3), (2, 5), (6, 1)]
MULTIPLIERS = [SimpleNamespace(lr_mult=1 + i / 2, wd_mult=2.0 - i) for i in range(len(SHAPES))]
COMMON = {
    "plain": {},
    "decayed": {"wd": 0.1},
    "clipped": {"clip_gradient": 0.3, "wd": 0.1},
    "rescaled": {"rescale_grad": 0.5},
}
BELOW_0 = {"rmsprop": {"clip_weights": -0.6}, "lamb": {"lower_bound": -0.5, "upper_bound": -1.0}}
CLIPPED_IN_PYTHON = ["adadelta", "adagrad"]
TOLERANCE = 1e-6  # MXNet rounds options to float32
CASES = [
    ("adadelta", {}),
    ("adagrad", {}),
    ("adam", {}),
    ("adam", {"epsilon": 1e-2, "beta1": 0.5, "beta2": 0.3}),
    ("adamw", {}),
    ("adamw", {"epsilon": 1e-2, "beta1": 0.5, "beta2": 0.3}),
    ("lamb", {}),
    ("lion", {}),
    ("lion", {"beta1": 0.3, "beta2": 0.7}),
    ("lamb", {"lower_bound": 0.5, "upper_bound": 1.0, "bias_correction": False}),
    ("nag", {}),
    ("nag", {"momentum": 0.9}),
    ("radam", {}),
    ("radam", {"beta2": 0.3}),
    ("rmsprop", {}),
    ("rmsprop", {"clip_weights": 0.6}),
    ("rmsprop", {"centered": True}),
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
]


def both_after_steps(name, options, dtype):
    """Return MXNet's weights and states after some steps, and the rule's."""
    random = np.random.RandomState(0)
    values = [random.randn(*shape).astype(dtype) for shape in SHAPES]
    optimizer, options_of_rule = (mx.optimizer.create(name, **options) for _ in range(2))
    optimizer.param_dict = options_of_rule.param_dict = dict(enumerate(MULTIPLIERS))
    weights = [mx.nd.array(value, dtype=dtype) for value in values]
    states = [cast(optimizer.create_state(i, weight), dtype) for i, weight in enumerate(weights)]
    updated, indices = [torch.tensor(value) for value in values], list(range(len(values)))
    group = Group(updated, [], zeros(name, options_of_rule, updated))
    for step in range(STEPS):
        optimizer.lr = options_of_rule.lr = 0.1 / (1 + step % 4)
        gradients = [random.randn(*shape).astype(dtype) for shape in SHAPES]
        for i, gradient in enumerate(gradients):
            optimizer.update(i, weights[i], mx.nd.array(gradient, dtype=dtype), states[i])
        options_of_rule._update_count(indices)
        group.gradients = [torch.tensor(gradient) for gradient in gradients]
        group.rates = options_of_rule._get_lrs(indices)
        group.decays = options_of_rule._get_wds(indices)
        group.counts = [options_of_rule._index_update_count[i] for i in indices]
        RULES[name].update(options_of_rule, group)
    return (weights, states), (updated, group.states)


def zeros(name, options, weights):
    """Return the states with which a rule begins."""
    count = RULES[name].states(options)
    return [tuple(torch.zeros_like(each) for _ in range(count)) for each in weights]


def cast(state, dtype):
    """Return a state in a dtype: MXNet makes some in float32, whatever the weight."""
    if isinstance(state, tuple):
        return tuple(cast(part, dtype) for part in state)
    return None if state is None else state.astype(dtype)


def assert_equal(theirs, ours, tolerance):
    if isinstance(ours, (list, tuple)):
        theirs = [] if theirs is None else theirs if isinstance(theirs, (list, tuple)) else [theirs]
        assert len(theirs) == len(ours)
        for one, other in zip(theirs, ours):
            assert_equal(one, other, tolerance)
    else:
        np.testing.assert_allclose(ours.numpy(), theirs.asnumpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("common", COMMON)
@pytest.mark.parametrize("name,options", CASES, ids=lambda value: str(value).replace(" ", ""))
def test_weights_and_states_are_mxnets(name, options, common):
    options = {**options, **COMMON[common]}
    theirs, ours = both_after_steps(name, options, "float64")
    assert_equal(theirs, ours, TOLERANCE)


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_bounds_below_0_are_none_as_in_mxnets_operators(name):
    negative = {"clip_gradient": -0.3, **BELOW_0.get(name, {})}
    expected, _ = both_after_steps(name, {}, "float64")
    theirs, ours = both_after_steps(name, negative, "float64")
    assert_equal(expected, ours, TOLERANCE)
    if name not in CLIPPED_IN_PYTHON:
        assert_equal(theirs, ours, TOLERANCE)


@pytest.mark.parametrize("common", COMMON)
def test_bert_adam_is_gluonnlps(common):
    pytest.importorskip("gluonnlp")
    theirs, ours = both_after_steps("bertadam", COMMON[common], "float32")
    assert_equal(theirs, ours, 2e-4)


PEERS = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw without decay": (torch.optim.AdamW, {"weight_decay": 0.0}),
    "radam": (torch.optim.RAdam, {}),
    "radam with decay": (torch.optim.RAdam, {"weight_decay": 0.1}),
    "radam of few squares": (torch.optim.RAdam, {"betas": (0.9, 0.5)}),
}


@pytest.mark.parametrize(("kind", "options"), PEERS.values(), ids=PEERS)
def test_numbers_and_defaults_are_torchs(kind, options):
    """They differ by as much as MXNet's operators round their options, to float32."""
    random = np.random.RandomState(0)
    theirs = [torch.tensor(random.randn(*shape)).requires_grad_() for shape in SHAPES]
    ours = [each.detach().clone() for each in theirs]
    peer, name = kind(theirs, lr=0.01, **options), kind.__name__.lower()
    (beta1, beta2), named = peer.defaults["betas"], {"wd": "weight_decay"}
    given = {own: options[their] for own, their in named.items() if their in options}
    optimizer = mx.optimizer.create(name, learning_rate=0.01, beta1=beta1, beta2=beta2, **given)
    group, indices = (
        Group(ours, [], zeros(name, optimizer, ours)),
        [*range(len(ours))],
    )
    for _ in range(STEPS):
        gradients = [random.randn(*shape) for shape in SHAPES]
        for weight, gradient in zip(theirs, gradients):
            weight.grad = torch.tensor(gradient)
        peer.step()
        optimizer._update_count(indices)
        group.gradients = [torch.tensor(gradient) for gradient in gradients]
        group.rates, group.decays = optimizer._get_lrs(indices), optimizer._get_wds(indices)
        group.counts = [optimizer._index_update_count[i] for i in indices]
        RULES[name].update(optimizer, group)
    for their, own in zip(theirs, ours):
        torch.testing.assert_close(own, their.detach(), rtol=1e-6, atol=1e-7)


def test_every_rule_bears_the_name_of_an_optimizer():
    pytest.importorskip("gluonnlp")
    assert set(RULES) <= set(mx.optimizer.Optimizer.opt_registry)
