"""Trainers are declared, checked and built; their controls; and what a checkpoint holds of them."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multifit import TrainerError, TrainerSpec
from multifit.schedules import OneCycle
from multifit.torch.handle import TrainerHandle
from multifit.torch.optimizers import KNOWN
from multifit.torch.trainers import Trainers
from tests.torch.native.steps import (
    assert_equal,
    batches_of,
    loss_of,
    messages,
    model_of,
    small_net,
    train,
    trainers_of,
    values,
)

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]

# ---- what is declared


def test_the_default_is_adam_for_all_parameters():
    lines: list[str] = []
    trainers = Trainers(None, (), model_of(small_net()), lines.append)
    assert trainers.build() == [] and trainers.get() is trainers
    assert trainers.build() == []
    assert lines == ["default trainer: adam, learning rate 0.001, over all parameters"]
    assert repr(trainers["trainer"]) == (
        'TrainerHandle("trainer", Adam: learning_rate=0.001, weight_decay=0.0, momentum=0.9)'
    )
    assert (list(trainers), len(trainers), repr(trainers)) == (["trainer"], 1, "Trainers(trainer)")
    assert trainers.learning_rates() == {"lr": 0.001} and list(trainers.updated()) == NAMES
    assert trainers.options == {"trainer": {"lr": 1e-3}} and trainers.window == 1


@pytest.mark.parametrize(
    "select",
    [
        lambda net: "0[.].*",
        lambda net: net[0],
        lambda net: net[0].parameters(),
        lambda net: [net[0].bias, net[0].weight],
        lambda net: ["0.weight", net[0].bias],
    ],
    ids=["pattern", "module", "iterator", "parameters", "mixed"],
)
def test_parameters_are_selected(select):
    net = small_net()
    trainers = trainers_of(
        net, {"body": TrainerSpec(select(net)), "head": net and TrainerSpec(net[2].weight)}
    )
    (problem,) = trainers.build()
    assert problem.message.startswith('no trainer updates "2.bias", so they would stay as they are;')
    assert problem.message.endswith('or pass frozen=["2.bias"]')
    (again,) = trainers.build()  # iterators are read once
    assert again == problem
    assert list(trainers.parameters["body"]) == NAMES[:2] and list(trainers.parameters["head"]) == [
        "2.weight"
    ]


def test_optimizers_are_named_or_made():
    classes = ["adamw", "AdamW", torch.optim.AdamW, functools.partial(torch.optim.AdamW, amsgrad=False)]
    functions = [lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.2)]
    for optimizer in [*classes, *functions]:
        options = {"learning_rate": 0.1, "wd": 0.2} if optimizer in classes else None
        (handle,) = trainers_of(small_net(), TrainerSpec(".*", optimizer, options)).values()
        assert isinstance(handle.optimizer, torch.optim.AdamW)
        assert (handle.learning_rate, handle.weight_decay) == (0.1, 0.2)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_optimizer_of_torch_trains(name):
    if name == "lbfgs":
        (message,) = messages(small_net(), TrainerSpec(".*", name))
        assert message == (
            "trainers: LBFGS computes losses within its step, by a closure, which fit does not; give another "
            "optimizer"
        )
        return
    net = small_net() if name != "muon" else nn.Sequential(nn.Linear(5, 2, bias=False)).double()
    if name == "sparseadam":
        net = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    trainers, before = trainers_of(net, TrainerSpec(".*", name)), values(net)
    if name == "sparseadam":
        train(trainers, net, [(torch.tensor([1]), None)], loss=lambda net, batch: net(batch[0]).sum())
    else:
        train(trainers, net, batches_of(4, 2))
    assert not torch.equal(values(net), before)
    other = copy.deepcopy(net)
    fresh = trainers_of(other, TrainerSpec(".*", name))
    fresh.load(trainers.state())
    if name != "sparseadam":
        for each, of in ((trainers, net), (fresh, other)):
            train(each, of, batches_of(3, 5))
        assert torch.equal(values(net), values(other))


def test_an_optimizer_that_exists_is_taken_as_it_is():
    ours, theirs = small_net(), small_net()
    make = lambda net: torch.optim.SGD(  # noqa: E731
        [{"params": net[0].parameters(), "lr": 0.3}, {"params": net[2].parameters()}], lr=0.1, momentum=0.9
    )
    optimizer, batches = make(ours), batches_of(4, 3)
    trainers = trainers_of(ours, {"sgd": optimizer})
    train(trainers, ours, batches)
    assert trainers["sgd"].optimizer is optimizer and trainers["sgd"].learning_rate == 0.3
    reference = make(theirs)
    for batch in batches:
        reference.zero_grad()
        loss_of(theirs, batch).backward()
        reference.step()
    assert_equal(ours, theirs)
    again = trainers_of(ours, {"sgd": trainers["sgd"]})  # another estimator's
    assert again["sgd"].optimizer is optimizer


def test_fused_operators_are_used_where_they_are_faster_and_work():
    fused = lambda net, spec: trainers_of(net, spec)["trainer"].defaults.get("fused")  # noqa: E731
    assert fused(small_net(), TrainerSpec(".*", "adagrad")) and fused(small_net(), None)
    assert not fused(small_net(), TrainerSpec(".*", "adam", {"foreach": True}))
    assert not fused(small_net(), TrainerSpec(".*", "sgd"))
    assert not fused(small_net().bfloat16(), TrainerSpec(".*", "adam"))
    assert not fused(nn.Sequential(nn.Embedding(4, 2, sparse=True)), TrainerSpec(".*", "adagrad"))


def test_lazy_parameters_have_trainers_before_their_shapes():
    net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    net.unused = nn.LazyLinear(2)
    trainers = trainers_of(net, TrainerSpec(".*", "adam"))
    assert trainers.learning_rates() == {"lr": 0.001}
    net[0](torch.zeros(2, 5))
    (problem,) = trainers.unreached()
    assert problem.message == (
        'the forward pass never reached "unused.weight", "unused.bias": no trainer can update what has no '
        'shape yet; take the layer out of the net, or pass frozen=["unused.*"]'
    )
    net.unused(torch.zeros(2, 3))
    assert trainers.unreached() == []


# ---- mistakes

SHARED = small_net()
FOREIGN = torch.optim.SGD(small_net().parameters())
OF_SHARED = torch.optim.SGD(SHARED.parameters())
SPEC = TrainerSpec
ADAM_HAS = (
    'adam has "amsgrad", "betas", "capturable", "decoupled_weight_decay", "differentiable", "eps", '
    '"foreach", "fused", "lr", "maximize", "weight_decay"'
)
CASES: dict[str, tuple[Any, list[str]]] = {
    "pattern": (
        SPEC("bdy.*"),
        ['trainers: the pattern "bdy.*" selects none of the net\'s parameters; a pattern'],
    ),
    "short": (SPEC("0.w"), ['selects none of the net\'s parameters (did you mean "0.w.*"?)']),
    "regular": (SPEC("(0"), ['trainers: "(0" is not a regular expression: missing )']),
    "foreign_module": (
        SPEC(nn.Linear(2, 2)),
        ["trainers: the Linear selects none of the net's parameters; its"],
    ),
    "nothing": (SPEC([]), ["trainers: params is [], which selects nothing; leave it out"]),
    "number": (
        SPEC(3),
        ["trainers: 3 selects no parameters; give a pattern (several are joined by |), a module"],
    ),
    "two_owners": (
        {"all": SPEC(".*", "sgd"), "head": SPEC("2.*")},
        ['the trainers all and head would update "2.weight", "2.bias"; each parameter belongs'],
    ),
    "nobody": (
        {"body": SPEC("0.*")},
        ['no trainer updates "2.weight", "2.bias", so they would stay as they'],
    ),
    "list": ([SPEC("0.*"), SPEC("2.*")], ["is neither a TrainerSpec nor a torch.optim.Optimizer; several"]),
    "empty": (
        {},
        ["trainers: the dict is empty; name at least one trainer, or leave trainers= out", "no trainer"],
    ),
    "name": ({3: SPEC(".*")}, ["trainers: 3 is not a name; name each trainer with a string"]),
    "class": (
        torch.optim.Adam,
        ["trainers: <class 'torch.optim.adam.Adam'> is neither a TrainerSpec nor a torch"],
    ),
    "unknown": (
        SPEC(".*", "adma"),
        ['there is no optimizer \'adma\' (did you mean "adam"?); valid are "adadelta"'],
    ),
    "no_optimizer": (SPEC(".*", 3), ["trainers: there is no optimizer 3; valid are"]),
    "built": (
        SPEC(".*", FOREIGN),
        ["the optimizer SGD has its parameters already; give it alone, as the trainer"],
    ),
    "option": (SPEC(".*", "adam", {"lrr": 1}), [f"unknown option 'lrr' (did you mean \"lr\"?); {ADAM_HAS}"]),
    "alias": (
        SPEC(".*", "adam", {"lr": 1, "learning_rate": 1}),
        ['has both "lr" and "learning_rate", which are the same'],
    ),
    "options": (SPEC(".*", "adam", 0.1), ["optimizer_params is 0.1; give a dict, such as"]),
    "rate": (SPEC(".*", "adam", {"lr": -1}), ["trainers: lr is -1; valid is a finite number of at least 0"]),
    "momentum": (SPEC(".*", "sgd", {"momentum": 1.5}), ["trainers: momentum is 1.5; valid is"]),
    "of_torch": (
        SPEC(".*", "adam", {"betas": (2, 0.9)}),
        ["trainers: Adam does not take {'betas': (2, 0.9)}: Invalid beta parameter at index"],
    ),
    "clip": (SPEC(".*", clip_norm=0), ["clip_norm is 0; it must be a finite number above 0, or None"]),
    "every": (SPEC(".*", every=0), ["trainers: every is 0; valid is"]),
    "no_function": (
        SPEC(".*", lambda parameters: 3),
        ["the function returned 3, which is no torch.optim.Optim"],
    ),
    "other_parameters": (
        SPEC(".*", lambda parameters: torch.optim.SGD(parameters[:1])),
        ["trainers: the optimizer must hold exactly the parameters that it is called with"],
    ),
    "closure": (SPEC(".*", lambda each: torch.optim.LBFGS(each)), ["LBFGS computes losses within its step"]),
    "own_closure": (
        torch.optim.LBFGS(SHARED.parameters()),
        ["trainers: LBFGS computes losses within its step"],
    ),
    "foreign": (
        FOREIGN,
        [
            "trainers: holds parameters that the net does not have, of the shapes (4, 5), (4,), (2, 4)",
        ],
    ),
    "one_object": (
        {"one": OF_SHARED, "two": OF_SHARED},
        [
            "the trainers one and two share one optimizer object, whose",
            "the trainers one and two would update",
        ],
    ),
    "several": (
        {"body": SPEC("bdy.*", "adma"), "head": SPEC("2.*", "sgd", {"lrr": 1}, clip_norm=-1)},
        ['the pattern "bdy.*"', "no optimizer 'adma'", "clip_norm is -1"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_mistakes_are_refused_together(name):
    declared, expected = CASES[name]
    found = messages(SHARED, declared)
    assert len(found) == len(expected), found
    for message, part in zip(found, expected):
        assert part in message
    with pytest.raises(TrainerError):
        trainers_of(SHARED, declared).get()
    assert trainers_of(SHARED, declared).learning_rates() == {}
    trainers_of(SHARED, declared).check_none_accumulates()  # which are not reported here


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (["bdy.*"], 'frozen: the pattern "bdy.*" selects none of the net\'s parameters; a pattern must'),
        ("2.*", 'trainers["head"]: everything that it selects is frozen: "2.weight", "2.bias"; leave it'),
    ],
)
def test_mistakes_in_what_is_frozen(frozen, message):
    (found, *_) = messages(small_net(), {"body": SPEC("0.*"), "head": SPEC("2.*")}, frozen)
    assert found.startswith(message)


def test_an_optimizer_must_not_update_what_is_frozen():
    (found,) = messages(SHARED, OF_SHARED, "0.*")
    assert found == (
        'trainers: updates parameters that frozen= names: "0.weight", "0.bias"; take them out of the '
        "optimizer, or give a TrainerSpec, from which frozen parameters are subtracted"
    )


def test_what_is_not_a_parameter_is_not_trained():
    net = nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2))
    net.register_buffer("table", torch.zeros(2))
    for params in ("1.running_mean", "table", net.table):
        found, *_ = messages(net, SPEC(params))
        assert "selects only what is not trained, such as running statistics" in found


def test_a_shared_parameter_has_its_first_name():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    (found,) = messages(net, SPEC("1.weight"))
    assert 'matches "1.weight", which is another name of the shared parameter "0.weight"' in found
    assert messages(net, {"a": SPEC(net[0]), "b": SPEC("1.bias")}) == []


def test_clipping_needs_dense_gradients():
    net = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    (found,) = messages(net, SPEC(".*", "sgd", clip_norm=1.0))
    assert found == (
        'trainers: clip_norm needs dense gradients, but those of "0.weight" are sparse; build the layer with '
        "sparse=False"
    )


def test_the_estimator_s_accumulate_must_agree_with_the_trainers():
    (found,) = messages(small_net(), SPEC(".*", every=3), accumulate=2)
    assert found.startswith("trainers: every=3, but MultiEstimator(accumulate=2) is for all trainers;")


def test_nothing_accumulates_outside_of_a_fit():
    with pytest.raises(TrainerError, match="accumulate=True adds up gradients within a fit only"):
        trainers_of(small_net(), {"all": SPEC(".*")}, accumulate=2).check_none_accumulates()


def test_an_unknown_trainer_is_named():
    trainers = trainers_of(small_net(), {"body": SPEC("0.*"), "head": SPEC("2.*")})
    with pytest.raises(KeyError, match="no trainer .*bodi.*did you mean .*body.*there are .*body.*head"):
        trainers["bodi"]
    assert trainers.get("bodi") is None and "head" in trainers


def test_errors_of_the_user_s_own_optimizers_are_passed_on():
    def make(parameters: Any, size: int) -> Any:
        raise KeyError(size)

    with pytest.raises(KeyError) as raised:
        messages(small_net(), SPEC(".*", make, {"size": 3}))
    assert "raised in trainers: <function" in raised.value.__notes__[0]
    assert "called with {'size': 3}" in raised.value.__notes__[0]


# ---- controls


def test_controls_are_read_and_set():
    net = small_net()

    def groups(parameters: Any) -> Any:
        one, other, *rest = ({"params": [each]} for each in parameters)
        return torch.optim.AdamW([one, {**other, "weight_decay": 0.0}, *rest], weight_decay=0.1)

    (handle,) = trainers_of(net, SPEC(".*", groups)).values()
    handle.weight_decay = 0.2
    assert [group["weight_decay"] for group in handle.param_groups] == [0.2, 0.0, 0.2, 0.2]
    handle.momentum = 0.8
    assert [group["betas"] for group in handle.param_groups] == [(0.8, 0.999)] * 4
    assert (handle.weight_decay, handle.momentum) == (0.2, 0.8)
    with pytest.raises(ValueError, match=r'trainers\["trainer"\].momentum is 1; valid is'):
        handle.momentum = 1
    (handle,) = trainers_of(net, SPEC(".*", "rprop")).values()
    assert (handle.weight_decay, handle.momentum) == (None, None)
    with pytest.raises(TrainerError, match=r'weight_decay: Rprop has none; it has "learning_rate"'):
        handle.weight_decay = 0.1
    assert copy.copy(handle).name == "trainer"


@pytest.mark.parametrize("name", ["sgd", "rmsprop"])
def test_momentum_that_is_raised_from_0_starts_at_0(name):
    net = small_net()
    trainers = trainers_of(net, SPEC(".*", name, {"lr": 0.1}))
    train(trainers, net, batches_of(4))
    trainers["trainer"].momentum = 0.5
    train(trainers, net, batches_of(4, 4))
    states = trainers["trainer"].optimizer.state
    assert all(state["momentum_buffer"].abs().sum() > 0 for state in states.values())


def test_states_are_saved_to_a_file(tmp_path: Path):
    nets = [small_net(), small_net()]
    one, other = (trainers_of(net, SPEC(".*", "adam", {"lr": 0.1}, OneCycle(0.1, 9))) for net in nets)
    train(one, nets[0], batches_of(4, 4))
    one["trainer"].save_states(tmp_path / "states")
    other["trainer"].load_states(tmp_path / "states")
    assert isinstance(other["trainer"], TrainerHandle)
    assert other.learning_rates() == one.learning_rates()
    other["trainer"].learning_rate = 0.7
    assert other.learning_rates() == {"lr": 0.7}


# ---- checkpoints


@pytest.mark.parametrize("done", [2, 3, 4])
def test_a_run_continues_exactly_within_a_window(done):
    declared = {
        "body": SPEC("0.*", "adamw", {"lr": 0.1}, OneCycle(0.1, 9), clip_norm=1.0, every=3, accumulate=True),
        "head": SPEC("2.*", "sgd", {"lr": 0.1, "momentum": 0.9}, every=2),
    }
    nets, batches = [small_net(), small_net(), small_net()], batches_of(4, 2, 6, 3, 5, 1, 2)
    whole, first, second = (trainers_of(net, declared) for net in nets)
    train(whole, nets[0], batches)
    train(first, nets[1], batches[:done], ends=False)
    state = copy.deepcopy(first.state())
    assert bool(state["gradients"]) == (done != 3)
    nets[2].load_state_dict(nets[1].state_dict())
    second.load(state)
    saved = copy.deepcopy(state)
    train(second, nets[2], batches[done:], start=done)
    assert torch.equal(values(nets[2]), values(nets[0]))
    torch.testing.assert_close(state["gradients"], saved["gradients"], rtol=0, atol=0)  # were copied
    torch.testing.assert_close(
        state["trainers"]["head"]["states"], saved["trainers"]["head"]["states"], rtol=0, atol=0
    )


def test_states_are_restored_for_a_trial():
    net = small_net()
    trainers = trainers_of(net, SPEC(".*", "adam"))
    state = copy.deepcopy(trainers.state())
    assert plain(state)
    train(trainers, net, batches_of(4))
    assert plain(trainers.state()) and trainers["trainer"].optimizer.state
    trainers.load(state)
    assert not trainers["trainer"].optimizer.state


def plain(tree: Any) -> bool:
    """Whether a tree has only tensors and plain values."""
    if isinstance(tree, dict):
        return all(type(key) is str and plain(value) for key, value in tree.items())
    if isinstance(tree, (list, tuple)):
        return all(map(plain, tree))
    return tree is None or type(tree) in (bool, int, float, str, torch.Tensor)


def test_the_scale_of_losses_is_saved():
    nets = [small_net(), small_net()]
    one, other = (Trainers(SPEC(".*"), (), model_of(net, "float16"), print) for net in nets)
    train(one, nets[0], batches_of(4))
    one.loss_scale.scale = 8.0
    other.load(one.state())
    assert (other.loss_scale.scale, other.loss_scale.finite) == (8.0, 1)


# ---- what the engine asks for


def test_gradients_are_those_that_no_update_has_used():
    net = small_net()
    trainers = trainers_of(net, {"body": SPEC("0.*"), "head": SPEC("2.*", every=2, accumulate=True)})
    assert trainers.gradients() == {"body": {}, "head": {}}
    net[2].weight.grad = torch.ones(2, 4).double()
    assert list(trainers.gradients()["head"]) == ["2.weight"]
    assert trainers.gradients()["head"]["2.weight"][0] is net[2].weight.grad
    assert trainers.due(0, 4, False) == ["body"]
    assert trainers.gradients() == {"body": {}}
    assert trainers.due(0, 4, True) == ["body", "head"]  # an epoch ends, whose rest makes an update


def test_gradients_of_a_fit_that_failed_are_discarded():
    net = small_net()
    trainers = trainers_of(net, SPEC(".*", "sgd"), accumulate=2)
    with pytest.raises(KeyError), trainers.training():
        train(trainers, net, batches_of(4), ends=False)
        assert trainers.left
        raise KeyError
    assert not trainers.left and all(each.grad is None for each in net.parameters())
    with trainers.training():
        assert train(trainers, net, batches_of(4, 4)) == [[], ["trainer"]]
