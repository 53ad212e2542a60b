"""What is frozen stays as it is: parameters, and running statistics."""

from typing import Any

import pytest
import torch
from torch import nn

from multifit import TrainerError, TrainerSpec
from multifit.torch.trainers import Trainers
from tests.torch.native.steps import batches_of, messages, model_of, small_net, train, trainers_of


def normed(affine: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=affine), nn.Linear(4, 2)).double()


def changes(net: nn.Module, trainers: Trainers, mode: bool = True) -> set[str]:
    """The names of the parameters and buffers that training on a batch changes."""
    before = {name: each.clone() for name, each in net.state_dict().items()}
    net.train(mode)
    trainers.after_train_mode()
    train(trainers, net, batches_of(6))
    return {name for name, each in net.state_dict().items() if not torch.equal(each, before[name])}


BODY, NORM, HEAD = {"0.weight", "0.bias"}, {"1.weight", "1.bias"}, {"2.weight", "2.bias"}
STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
SPEC = TrainerSpec(".*", "sgd", {"lr": 0.1, "weight_decay": 0.1})


@pytest.mark.parametrize(
    ("frozen", "left"),
    [
        ((), BODY | NORM | HEAD | STATISTICS),
        (None, BODY | NORM | HEAD | STATISTICS),
        (["0.*"], NORM | HEAD | STATISTICS),
        ("0.*", NORM | HEAD | STATISTICS),
        (["1.weight"], BODY | {"1.bias"} | HEAD | STATISTICS),
        (["1[.].*"], BODY | HEAD),
        (["1.weight", "1.bias"], BODY | HEAD),
        (["1.running_mean"], BODY | NORM | HEAD),
    ],
)
def test_frozen_is_not_trained(frozen, left):
    net = normed()
    trainers = trainers_of(net, SPEC, frozen)
    with trainers.training():
        assert changes(net, trainers) == left
        assert all(each.requires_grad == (name in left) for name, each in net.named_parameters())
    assert all(each.requires_grad for each in net.parameters())
    assert set(trainers.frozen_statistics()) == STATISTICS - left
    assert set(trainers.not_updated()) == (BODY | NORM | HEAD) - left


def test_modules_and_parameters_are_frozen_by_themselves():
    for select in (
        lambda net: net[1],
        lambda net: [net[1].weight, net[1].bias],
        lambda net: net[1].parameters(),
    ):
        net = normed()
        trainers = trainers_of(net, SPEC, select(net))
        assert changes(net, trainers) == BODY | HEAD


def test_a_norm_without_parameters_is_frozen_by_its_statistics():
    net = normed(affine=False)
    assert changes(net, trainers_of(net, SPEC)) == BODY | HEAD | STATISTICS
    assert changes(net, trainers_of(net, SPEC, ["1.running_var"])) == BODY | HEAD


def test_a_frozen_norm_normalises_by_its_running_statistics():
    net = normed()
    trainers = trainers_of(net, SPEC, [net[1]])
    assert trainers.build() == []
    inputs = batches_of(6)[0][0]
    net.eval()
    expected = net(inputs)
    net.train()
    assert not torch.equal(net(inputs), expected)
    net[1].running_mean.zero_(), net[1].running_var.fill_(1)
    trainers.after_train_mode()
    torch.testing.assert_close(net(inputs), expected, rtol=0, atol=1e-12)
    assert net.training and not net[1].training


def test_freezing_during_the_run():
    net = normed()
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    trainers = trainers_of(net, TrainerSpec(".*", "sgd", options))
    assert changes(net, trainers) == BODY | NORM | HEAD | STATISTICS
    assert trainers.set_frozen("freeze", "[01].*", True) == sorted(BODY | NORM | STATISTICS)
    assert trainers.set_frozen("freeze", ["0.weight"], True) == []
    assert set(trainers.frozen_statistics()) == STATISTICS
    assert changes(net, trainers) == HEAD  # though optimizers still have momentum
    assert trainers.set_frozen("unfreeze", "1.*", False) == sorted(NORM | STATISTICS)
    assert net[1].training
    assert changes(net, trainers) == NORM | HEAD | STATISTICS
    assert trainers.set_frozen("unfreeze", net[0], False) == sorted(BODY)
    assert changes(net, trainers) == BODY | NORM | HEAD | STATISTICS


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("0.*", 'freeze: frozen= has taken "0.bias", "0.weight" from the trainers; leave frozen= out'),
        ([], "freeze: [] selects no parameters; give a pattern"),
        ("bdy", 'freeze: the pattern "bdy" selects none of the net\'s parameters; a pattern must match a'),
        (3, "freeze: 3 selects no parameters; give a pattern (several are joined by |), a module or"),
    ],
)
def test_what_cannot_be_frozen_is_refused(params, message):
    trainers = trainers_of(normed(), SPEC, ["0.*"])
    with pytest.raises(TrainerError) as raised:
        trainers.set_frozen("freeze", params, True)
    assert message in str(raised.value)


def test_requires_grad_that_is_changed_between_batches_is_noticed():
    net = normed()
    trainers = trainers_of(net, SPEC)
    train(trainers, net, batches_of(4))
    net[0].weight.grad = torch.ones_like(net[0].weight)  # as if left by a loop of the user's own
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    assert trainers.build() == [] and net[0].weight.grad is None
    assert changes(net, trainers) == HEAD
    net[0].bias.requires_grad_()
    assert changes(net, trainers) == HEAD | {"0.bias"}


def test_what_nobody_updates_is_reported_once_it_requires_gradients():
    net = small_net()
    net[0].requires_grad_(False)
    trainers = trainers_of(net, TrainerSpec("2.*", "sgd"))
    assert trainers.build() == []
    net[0].weight.requires_grad_()
    (problem,) = trainers.build()
    assert problem.message.startswith('no trainer updates "0.weight", so they would stay as they are; add')
    net[0].weight.requires_grad_(False)
    assert trainers.build() == []


def test_a_net_that_is_all_frozen_has_nothing_to_train():
    net = small_net()
    net.requires_grad_(False)
    (message,) = messages(net, TrainerSpec(".*", "sgd"))
    assert message.startswith("trainers: the net has no parameters to train: unfreeze() some, freeze fewer")


def test_a_trainer_whose_parameters_rest_is_logged():
    net, lines = small_net(), list[str]()
    net[2].requires_grad_(False)
    declared = {"body": TrainerSpec("0.*"), "head": TrainerSpec("2.*")}
    assert Trainers(declared, (), model_of(net), lines.append).build() == []
    assert lines == [
        'trainers["head"]: nothing that it selects requires gradients: "2.weight", "2.bias"; it trains '
        "nothing until that changes"
    ]


def test_layers_that_the_user_keeps_in_evaluation_mode_stay_so():
    class Kept(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    net = nn.Sequential(nn.Linear(5, 2), Kept(2)).double()
    assert not changes(net, trainers_of(net, SPEC)) & {"1.running_mean"}
    net = normed()
    trainers = trainers_of(net, SPEC)
    net.train()
    net[1].eval()
    trainers.after_train_mode()
    assert not net[1].training


def test_what_is_frozen_is_saved():
    nets = [normed(), normed()]
    first, second = (trainers_of(net, SPEC, ["2.bias"]) for net in nets)
    first.get()
    first.set_frozen("freeze", "[01].*", True)
    second.load(first.state())
    assert changes(nets[1], second) == {"2.weight"}
    assert second.set_frozen("unfreeze", "[01].*", False) == sorted(BODY | NORM | STATISTICS)
