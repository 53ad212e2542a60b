"""The plan of a PyTorch net: every name with its shape, every trainer, and its layers."""

from __future__ import annotations

import json

import torch
from torch import nn

from multifit import LossSpec, SpecError, TrainerSpec

from .faulty import CE, MSE, arrays, new_setup

TRAINERS = {
    "body": TrainerSpec("body.*", "adamw", {"lr": 0.01}, clip_norm=2.0),
    "heads": TrainerSpec("(digit|amount).weight", "sgd", {"lr": 0.1}, every=2),
}


def test_a_plan() -> None:
    setup = new_setup().but(val_data=[arrays()])
    plan = setup.with_trainers(TRAINERS, frozen=["(digit|amount).bias"], context="cpu").check()
    assert plan.devices == ("cpu",) and plan.samples == 8 and plan.precision == "float32"
    assert plan.train is not None
    values = {(row.what, row.name): row.value for row in plan.train.rows}
    assert values == {
        ("input", "x"): "(8, 6) float32", ("output", "digit"): "(8, 3) float32",
        ("output", "amount"): "(8, 1) float32", ("label", "digit"): "(8,) int64",
        ("label", "amount"): "(8, 1) float32", ("loss", "digit"): "() float32",
        ("loss", "amount"): "() float32", ("metric", "accuracy"): "accuracy",
    }  # fmt: skip
    body, heads = plan.trainers
    assert (body.optimizer, body.learning_rate, body.size, body.clip_norm) == ("AdamW", 0.01, 45, 2.0)
    assert (heads.optimizer, heads.learning_rate, heads.every) == ("SGD", 0.1, 2)
    assert body.losses == heads.losses == ("digit", "amount")
    assert set(plan.frozen) == {"digit.bias", "amount.bias"}
    text = plan.to_text(120)
    assert (
        "training, evaluating and predicting\n" in text
        and "gradients clipped to norm 2" in text
        and "0.5 x MSELoss" in text
    )
    json.dumps(plan.to_dict())


def test_layers() -> None:
    setup = new_setup()
    layers = {layer.name: layer for layer in setup.check(layers=True).layers}
    assert layers["body.0"][1:] == ("Linear", "(8, 5) float32", 35)
    assert layers["body"].output == "(8, 5) float32" and layers["body"].parameters == 0
    assert sum(layer.parameters for layer in layers.values()) == sum(
        p.numel() for p in setup.net.parameters()
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(1, 1)
        self.other.weight = self.one.weight
        self.own = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.other(self.one(x)) * self.own
        return y[:, :3], y[:, 3:4]


def test_layers_of_a_net_with_parameters_of_its_own() -> None:
    layers = new_setup().but(net=Tied()).check(layers=True).layers
    assert [(layer.name, layer.output, layer.parameters) for layer in layers] == [
        ("net", "[(8, 3) float32, (8, 1) float32]", 6), ("one", "(8, 6) float32", 42),
        ("other", "(8, 6) float32", 6), ("unused", "-", 2),
    ]  # fmt: skip


def test_loaders_that_take_turns() -> None:
    """What one loader's batches lack is described by the others'."""
    x, digit, amount = arrays()
    data = {"digit": [{"x": x, "digit": digit}] * 2, "amount": [{"x": x, "amount": amount}]}
    setup = new_setup().but(data=data, losses={"digit": CE(), "amount": LossSpec(MSE())})
    plan = setup.check()
    assert plan.train is not None
    values = {(row.what, row.name): row.value for row in plan.train.rows}
    assert values["label", "digit"] == "(8,) int64" and values["label", "amount"] == "(8, 1) float32"
    assert values["loss", "amount"] == "() float32"
    assert [(loader.name, loader.size) for loader in plan.loaders] == [("digit", 2), ("amount", 1)]
    setup.trains()
    wrong = {**data, "amount": [{"x": x, "amount": amount[:, 0]}]}
    setup.but(data=wrong).refused(SpecError, 'train_data "amount": losses["amount"]: the output "amount" is')
