"""Trainers are declared, checked and built; their controls; and what is frozen stays as it is."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multifit import MultiEstimator, TrainerError, TrainerSpec
from multifit.torch.handle import TrainerHandle
from multifit.torch.optimizers import KNOWN

from .nets import assert_equal_parameters, batches, net_of

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]
SPEC = TrainerSpec


def dense() -> nn.Sequential:
    return net_of(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def normed(affine: bool = True) -> nn.Sequential:
    return net_of(nn.Linear(6, 4), nn.BatchNorm1d(4, affine=affine), nn.Linear(4, 3))


def tied() -> nn.Sequential:
    net = net_of(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def data(*sizes: int) -> list[Any]:
    return [(x, kind) for x, kind, _ in batches(*(sizes or (6,)))]


def estimator_of(net: nn.Module | None = None, declared: Any = None, **options: Any) -> MultiEstimator:
    return MultiEstimator(net or dense(), nn.CrossEntropyLoss(), declared, **options)


def messages(net: nn.Module | None = None, declared: Any = None, **options: Any) -> list[str]:
    """Return all that is wrong with trainers."""
    with pytest.raises(TrainerError) as raised:
        _ = estimator_of(net, declared, **options).trainers
    return [each.message for each in raised.value.problems]


# ---- what is declared


def test_the_default_is_adam_for_all_parameters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "multifit")
    trainers: Any = estimator_of().trainers
    assert caplog.messages.count("default trainer: adam, learning rate 0.001, over all parameters") == 1
    text = 'TrainerHandle("trainer", Adam: learning_rate=0.001, weight_decay=0.0, momentum=0.9)'
    assert repr(trainers["trainer"]) == text
    assert (list(trainers), len(trainers), repr(trainers)) == (["trainer"], 1, "Trainers(trainer)")


SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "a pattern": lambda net: "0[.].*",
    "a module": lambda net: net[0],
    "an iterator": lambda net: net[0].parameters(),
    "parameters": lambda net: [net[0].bias, net[0].weight],
    "mixed": lambda net: ["0.weight", net[0].bias],
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_parameters_are_selected(name: str) -> None:
    net = dense()
    estimator = estimator_of(net, {"body": SPEC(SELECTIONS[name](net)), "head": SPEC(net[2].weight)})
    for _ in range(2):  # iterators are read once
        with pytest.raises(TrainerError) as raised:
            estimator.check(data())
        (problem,) = raised.value.problems
        assert problem.message.startswith('no trainer updates "2.bias", so they would stay as they are;')
        assert problem.message.endswith('or pass frozen=["2.bias"]')


ADAMW = torch.optim.AdamW


@pytest.mark.parametrize("optimizer", ["adamw", "AdamW", ADAMW, functools.partial(ADAMW, amsgrad=False)])
def test_optimizers_are_named_or_made(optimizer: Any) -> None:
    spec = SPEC(".*", optimizer, {"learning_rate": 0.1, "wd": 0.2})
    handle: Any = estimator_of(None, spec).trainers["trainer"]
    assert isinstance(handle.optimizer, ADAMW) and (handle.learning_rate, handle.weight_decay) == (0.1, 0.2)


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - {"lbfgs"}))
def test_every_optimizer_of_torch_trains_and_its_state_is_restored(name: str) -> None:
    layers = {"muon": [nn.Linear(6, 3, bias=False)], "sparseadam": [nn.EmbeddingBag(4, 3, sparse=True)]}
    net = net_of(*layers[name]) if name in layers else dense()
    samples = data(4, 2, 5)
    if name == "sparseadam":
        samples = [((x > 0).long(), kind) for x, kind in samples]
    before, estimator = copy.deepcopy(net.state_dict()), estimator_of(net, SPEC(".*", name))
    estimator.fit(samples[:2], epochs=1)
    assert not torch.equal(net[0].weight, before["0.weight"])
    twin = copy.deepcopy(net)
    again = estimator_of(twin, SPEC(".*", name))
    again._session.trainers.load(estimator._session.trainers.state())
    for each in (estimator, again):
        each.fit(samples[2:], epochs=1)
    assert_equal_parameters(net, twin, 0)


def test_fused_operators_are_used_where_they_are_faster_and_work() -> None:
    fused = lambda *given: estimator_of(*given).trainers["trainer"].defaults.get("fused")  # noqa: E731
    assert fused(None, SPEC(".*", "adagrad")) and fused()
    assert not fused(None, SPEC(".*", "adam", {"foreach": True}))
    assert not fused(None, SPEC(".*", "sgd"))
    assert not fused(dense().bfloat16(), SPEC(".*", "adam"))
    assert not fused(net_of(nn.Embedding(4, 2, sparse=True)), SPEC(".*", "adagrad"))


# ---- mistakes

SHARED = dense()
FOREIGN = torch.optim.SGD(dense().parameters())
OF_SHARED = torch.optim.SGD(SHARED.parameters())
OTHERS = lambda parameters: torch.optim.SGD(parameters[:1])  # noqa: E731
ADAM_HAS = (
    'adam has "amsgrad", "betas", "capturable", "decoupled_weight_decay", "differentiable", "eps", '
    '"foreach", "fused", "lr", "maximize", "weight_decay"'
)
# fmt: off
MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "pattern": (SPEC("bdy.*"),
        ['trainers: the pattern "bdy.*" selects none of the net\'s parameters; a pattern']),
    "foreign_module": (SPEC(nn.Linear(2, 2)),
        ["trainers: the Linear selects none of the net's parameters; its"]),
    "nothing": (SPEC([]), ["trainers: params is [], which selects nothing; leave it out"]),
    "number": (SPEC(3), ["trainers: 3 selects no parameters; give a pattern (several are joined by |), a"]),
    "two_owners": ({"all": SPEC(".*", "sgd"), "head": SPEC("2.*")},
        ['the trainers all and head would update "2.weight", "2.bias"; each parameter belongs']),
    "list": ([SPEC("0.*"), SPEC("2.*")],
        ["is neither a TrainerSpec nor a torch.optim.Optimizer; several"]),
    "unknown": (SPEC(".*", "adma"),
        ['there is no optimizer \'adma\' (did you mean "adam"?); valid are "adadelta"']),
    "built": (SPEC(".*", FOREIGN),
        ["the optimizer SGD has its parameters already; give it alone, as the trainer"]),
    "option": (SPEC(".*", "adam", {"lrr": 1}), [f"unknown option 'lrr' (did you mean \"lr\"?); {ADAM_HAS}"]),
    "rate": (SPEC(".*", "adam", {"lr": -1}), ["trainers: lr is -1; valid is a finite number of at least 0"]),
    "of_torch": (SPEC(".*", "adam", {"betas": (2, 0.9)}),
        ["trainers: Adam does not take {'betas': (2, 0.9)}: Invalid beta parameter at index"]),
    "no_function": (SPEC(".*", lambda parameters: 3),
        ["the function returned 3, which is no torch.optim.Optim"]),
    "other_parameters": (SPEC(".*", OTHERS),
        ["trainers: the optimizer must hold exactly the parameters that it is called with"]),
    "closure": (SPEC(".*", "lbfgs"),
        ["trainers: LBFGS computes losses within its step, by a closure, which fit does not; give another"]),
    "own_closure": (torch.optim.LBFGS(SHARED.parameters()), ["trainers: LBFGS computes losses within"]),
    "foreign": (FOREIGN,
        ["trainers: holds parameters that the net does not have, of the shapes (4, 6), (4,), (3, 4)"]),
    "one_object": ({"one": OF_SHARED, "two": OF_SHARED},
        ["the trainers one and two share one optimizer object, whose", "the trainers one and two would"]),
    "several": ({"body": SPEC("bdy.*", "adma"), "head": SPEC("2.*", "sgd", {"lrr": 1}, clip_norm=-1)},
        ['the pattern "bdy.*"', "no optimizer 'adma'", "clip_norm is -1"]),
}
OF_NETS: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "statistics": (normed, SPEC("1.running_mean"),
        "selects only what is not trained, such as running statistics"),
    "another name": (tied, SPEC("1.weight"),
        'matches "1.weight", which is another name of the shared parameter "0.weight"'),
    "sparse": (lambda: net_of(nn.Embedding(4, 2, sparse=True)), SPEC(".*", "sgd", clip_norm=1.0),
        'trainers: clip_norm needs dense gradients, but those of "0.weight" are sparse; build the'),
    "nothing to train": (lambda: dense().requires_grad_(False), SPEC(".*", "sgd"),
        "trainers: the net has no parameters to train: unfreeze() some, freeze fewer"),
}
FROZEN: dict[str, tuple[Any, Any, str]] = {
    "pattern": (SPEC(".*"), ["bdy.*"],
        'frozen: the pattern "bdy.*" selects none of the net\'s parameters; a pattern must'),
    "everything": ({"body": SPEC("0.*"), "head": SPEC("2.*")}, "2.*",
        'trainers["head"]: everything that it selects is frozen: "2.weight", "2.bias"; leave it'),
    "optimizer": (OF_SHARED, "0.*",
        'trainers: updates parameters that frozen= names: "0.weight", "0.bias"; take them out of the '
        "optimizer, or give a TrainerSpec, from which frozen parameters are subtracted"),
}
# fmt: on


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_together(name: str) -> None:
    declared, expected = MISTAKES[name]
    found = messages(SHARED, declared)
    assert len(found) == len(expected), found
    assert all(part in message for message, part in zip(found, expected)), found
    assert estimator_of(SHARED, declared).learning_rates() == {}


@pytest.mark.parametrize("name", OF_NETS)
def test_mistakes_for_other_nets(name: str) -> None:
    make, spec, message = OF_NETS[name]
    (found,) = messages(make(), spec)
    assert message in found


@pytest.mark.parametrize("name", FROZEN)
def test_mistakes_in_what_is_frozen(name: str) -> None:
    declared, frozen, message = FROZEN[name]
    assert messages(SHARED, declared, frozen=frozen)[0].startswith(message)


def test_nothing_accumulates_outside_of_a_fit() -> None:
    with pytest.raises(TrainerError, match="accumulate=True adds up gradients within a fit only"):
        estimator_of(accumulate=2).fit_batch(data()[0])


def test_errors_of_the_user_s_own_optimizers_are_passed_on() -> None:
    def make(parameters: Any, size: int) -> Any:
        raise KeyError(size)

    with pytest.raises(KeyError) as raised:
        _ = estimator_of(None, SPEC(".*", make, {"size": 3})).trainers
    assert "raised in trainers: <function" in raised.value.__notes__[0]
    assert "called with {'size': 3}" in raised.value.__notes__[0]


# ---- controls


def test_controls_are_read_and_set() -> None:
    def groups(parameters: Any) -> Any:
        one, other, *rest = ({"params": [each]} for each in parameters)
        return ADAMW([one, {**other, "weight_decay": 0.0}, *rest], weight_decay=0.1)

    handle: Any = estimator_of(None, SPEC(".*", groups)).trainers["trainer"]
    handle.weight_decay = 0.2
    assert [group["weight_decay"] for group in handle.param_groups] == [0.2, 0.0, 0.2, 0.2]
    handle.momentum = 0.8
    assert [group["betas"] for group in handle.param_groups] == [(0.8, 0.999)] * 4
    assert (handle.weight_decay, handle.momentum) == (0.2, 0.8)
    with pytest.raises(ValueError, match=r'trainers\["trainer"].momentum is 1; valid is'):
        handle.momentum = 1
    handle = estimator_of(None, SPEC(".*", "rprop")).trainers["trainer"]
    assert (handle.weight_decay, handle.momentum) == (None, None)
    with pytest.raises(TrainerError, match=r'weight_decay: Rprop has none; it has "learning_rate"'):
        handle.weight_decay = 0.1
    assert copy.copy(handle).name == "trainer"


@pytest.mark.parametrize("name", ["sgd", "rmsprop"])
def test_momentum_that_is_raised_from_0_starts_at_0(name: str) -> None:
    estimator = estimator_of(None, SPEC(".*", name, {"lr": 0.1}))
    estimator.fit(data(), epochs=1)
    estimator.trainers["trainer"].momentum = 0.5
    estimator.fit(data(), epochs=2)
    states = estimator.trainers["trainer"].optimizer.state
    assert all(state["momentum_buffer"].abs().sum() > 0 for state in states.values())


def test_states_are_saved_to_a_file(tmp_path: Path) -> None:
    one, other = (estimator_of(None, SPEC(".*", "adam", {"lr": rate})) for rate in (0.1, 0.2))
    one.fit(data(), epochs=1)
    one.trainers["trainer"].save_states(tmp_path / "states")
    handle: Any = other.trainers["trainer"]
    handle.load_states(tmp_path / "states")
    assert isinstance(handle, TrainerHandle) and other.learning_rates() == {"lr": 0.1}
    states = [each.trainers["trainer"].optimizer.state.values() for each in (one, other)]
    moments = [[state["exp_avg"] for state in each] for each in states]
    assert all(map(torch.equal, *moments)) and len(moments[0]) == 4


def test_gradients_are_those_that_the_next_update_uses() -> None:
    class Sees:
        def change_gradients(self, estimator: Any) -> None:
            gradients = estimator.gradients()
            seen.append({name: list(each) for name, each in gradients.items()})
            assert gradients["body"]["0.weight"][0] is estimator.net[0].weight.grad

    seen: list[Any] = []
    declared = {"body": SPEC("0.*"), "head": SPEC("2.*", every=2, accumulate=True)}
    estimator_of(None, declared).fit(data(4, 4, 4), epochs=1, event_handlers=[Sees()])
    assert seen[:2] == [{"body": NAMES[:2]}, {"body": NAMES[:2], "head": NAMES[2:]}]


# ---- what is frozen stays as it is: parameters, and running statistics

BODY, NORM, HEAD = {"0.weight", "0.bias"}, {"1.weight", "1.bias"}, {"2.weight", "2.bias"}
STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
ALL = BODY | NORM | HEAD | STATISTICS
DECAYS = SPEC(".*", "sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1})


def changes(estimator: MultiEstimator, *handlers: Any) -> set[str]:
    """Return the names of the parameters and buffers that training on a batch changes."""
    before = {name: each.clone() for name, each in estimator.net.state_dict().items()}
    estimator.fit(data(), epochs=1, event_handlers=[*handlers])
    return {name for name, each in estimator.net.state_dict().items() if not torch.equal(each, before[name])}


FREEZES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "nothing": (lambda net: (), ALL),
    "None": (lambda net: None, ALL),
    "a list": (lambda net: ["0.*"], ALL - BODY),
    "a pattern": (lambda net: "0.*", ALL - BODY),
    "a part of a layer": (lambda net: ["1.weight"], ALL - {"1.weight"}),
    "a layer": (lambda net: ["1[.].*"], BODY | HEAD),
    "its parameters": (lambda net: ["1.weight", "1.bias"], BODY | HEAD),
    "its statistics": (lambda net: ["1.running_mean"], BODY | NORM | HEAD),
    "a module": (lambda net: net[1], BODY | HEAD),
    "parameters": (lambda net: [net[1].weight, net[1].bias], BODY | HEAD),
    "an iterator": (lambda net: net[1].parameters(), BODY | HEAD),
}


@pytest.mark.parametrize("name", FREEZES)
def test_what_is_frozen_is_not_trained(name: str) -> None:
    class Sees:
        def batch_end(self, estimator: Any) -> None:  # no gradients of the others are computed
            learns = {name for name, each in net.named_parameters() if each.requires_grad}
            assert learns == left - STATISTICS

    select, left = FREEZES[name]
    net = normed()
    assert changes(estimator_of(net, DECAYS, frozen=select(net)), Sees()) == left
    assert all(each.requires_grad for each in net.parameters())


def test_a_norm_without_parameters_is_frozen_by_its_statistics() -> None:
    assert changes(estimator_of(normed(affine=False), DECAYS)) == BODY | HEAD | STATISTICS
    assert changes(estimator_of(normed(affine=False), DECAYS, frozen=["1.running_var"])) == BODY | HEAD


def test_a_frozen_norm_normalises_by_its_running_statistics() -> None:
    net, plain = normed(), net_of(nn.Linear(6, 4), nn.Identity(), nn.Linear(4, 3))
    net[1].eps = 0
    for index in (0, 2):
        plain[index].load_state_dict(net[index].state_dict())
    for each, options in ((net, {"frozen": [net[1]]}), (plain, {})):
        estimator_of(each, DECAYS, **options).fit(data(6, 6), epochs=1)
    torch.testing.assert_close(net[0].weight, plain[0].weight, rtol=0, atol=1e-12)


def test_freezing_during_the_run() -> None:
    net = normed()
    estimator = estimator_of(net, DECAYS)
    assert changes(estimator) == ALL
    assert estimator.freeze("[01].*") == sorted(BODY | NORM | STATISTICS)
    assert estimator.freeze(["0.weight"]) == []
    assert changes(estimator) == HEAD  # though optimizers still have momentum
    assert estimator.unfreeze("1.*") == sorted(NORM | STATISTICS)
    assert changes(estimator) == NORM | HEAD | STATISTICS
    assert estimator.unfreeze(net[0]) == sorted(BODY)
    assert changes(estimator) == ALL


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("0.*", 'freeze: frozen= has taken "0.bias", "0.weight" from the trainers; leave frozen= out'),
        ([], "freeze: [] selects no parameters; give a pattern"),
        ("bdy", 'freeze: the pattern "bdy" selects none of the net\'s parameters; a pattern must match a'),
        (3, "freeze: 3 selects no parameters; give a pattern (several are joined by |), a module or"),
    ],
)
def test_what_cannot_be_frozen_is_refused(params: Any, message: str) -> None:
    with pytest.raises(TrainerError) as raised:
        estimator_of(normed(), DECAYS, frozen=["0.*"]).freeze(params)
    assert message in str(raised.value)


def test_requires_grad_that_is_changed_between_batches_is_noticed() -> None:
    net = normed()
    estimator = estimator_of(net, DECAYS)
    changes(estimator)
    net[0].weight.grad = torch.ones_like(net[0].weight)  # as if left by a loop of the user's own
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    assert changes(estimator) == HEAD and net[0].weight.grad is None
    net[0].bias.requires_grad_()
    assert changes(estimator) == HEAD | {"0.bias"}


def test_what_nobody_updates_is_reported_once_it_requires_gradients() -> None:
    net = dense()
    net[0].requires_grad_(False)
    estimator = estimator_of(net, SPEC("2.*", "sgd"))
    assert changes(estimator) == HEAD
    net[0].weight.requires_grad_()
    with pytest.raises(TrainerError, match='no trainer updates "0.weight", so they would stay as they are;'):
        changes(estimator)


def test_a_trainer_whose_parameters_rest_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "multifit")
    net = dense()
    net[2].requires_grad_(False)
    assert len(estimator_of(net, {"body": SPEC("0.*"), "head": SPEC("2.*")}).trainers) == 2
    assert caplog.messages[-1] == (
        'trainers["head"]: nothing that it selects requires gradients: "2.weight", "2.bias"; it trains '
        "nothing until that changes"
    )


def test_what_is_frozen_is_saved() -> None:
    first, second = (estimator_of(normed(), DECAYS, frozen=["2.bias"]) for _ in range(2))
    first.freeze("[01].*")
    second._session.trainers.load(first._session.trainers.state())
    assert changes(second) == {"2.weight"}
    assert second.unfreeze("[01].*") == sorted(BODY | NORM | STATISTICS)
