"""A lifted module computes the same on the same tensors, and is forgotten with its function."""

import gc
import linecache
from functools import partial

import torch
from torch import fx

from multifit.torch.engine.program import lifted


class Net(torch.nn.Module):
    """A parameter and a buffer below each other, both used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(torch.nn.functional.linear(x, self.body[0].weight, self.body[0].bias)) * self.scale
        return y, y + self.scale + self.body[0].bias


def test_a_lifted_module_computes_on_the_tensors_of_the_module() -> None:
    module, x = fx.symbolic_trace(Net()), torch.rand(3, 2)
    function, tensors = lifted(module)
    function = partial(function, *tensors)
    for _ in range(2):
        assert all(map(torch.equal, function(x), module(x)))
        with torch.no_grad():
            module.scale.add_(1)
    gradients = torch.autograd.grad(sum(each.sum() for each in function(x)), [*module.parameters()])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_the_source_of_a_function_is_forgotten_with_it() -> None:
    function, _ = lifted(fx.symbolic_trace(Net()))
    source = function.__code__.co_filename
    assert source in linecache.cache
    del function
    gc.collect()
    assert source not in linecache.cache
