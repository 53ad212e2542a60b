"""A Gluon net of stock layers, rebuilt as PyTorch's users write it, with the same parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["tensor_of", "torch_net"]

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def torch_net(block: Any) -> nn.Module:
    """Return a net of `torch.nn` that computes what a Gluon net with known shapes does.

    Raises KeyError if it has a layer that is not known here.
    """
    return LAYERS[type(block).__name__](block)


class Heads(nn.Module):
    """A body and heads."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.body, self.heads = torch_net(block.body), nn.ModuleList(map(torch_net, block.heads))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return an output of each head."""
        features = self.body(image)
        return tuple(head(features) for head in self.heads)


class Residual(nn.Module):
    """Gluon's BasicBlockV1: a body beside a shortcut."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.body = torch_net(block.body)
        self.shortcut = torch_net(block.downsample) if block.downsample else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return maps of the body's size."""
        return torch.relu(self.body(x) + self.shortcut(x))


class Tiny(nn.Module):
    """The small body of tasks/parts/ssd.py."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.stages = nn.ModuleList(map(torch_net, block.stages))

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Return the last three maps."""
        maps = [image]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[3:]


class SSD(nn.Module):
    """gluoncv's SSD in training, without its anchors, which the targets hold."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.features, self._classes = torch_net(block.features), block.num_classes + 1
        self.of_classes = nn.ModuleList(torch_net(each.predictor) for each in block.class_predictors)
        self.of_boxes = nn.ModuleList(torch_net(each.predictor) for each in block.box_predictors)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores (N, anchors, classes) and boxes (N, anchors, 4)."""
        maps = self.features(image)
        found = []
        for predictors, size in ((self.of_classes, self._classes), (self.of_boxes, 4)):
            flat = [layer(each).permute(0, 2, 3, 1).flatten(1) for layer, each in zip(predictors, maps)]
            found.append(torch.cat(flat, 1).reshape(len(image), -1, size))
        return found[0], found[1]


def _dense(block: Any) -> nn.Module:
    units, size = block.weight.shape
    layer = _with_values(nn.Linear(size, units, block.bias is not None), block, "weight", "bias")
    return nn.Sequential(*([nn.Flatten()] if block._flatten else []), layer, *_activation(block.act))


def _convolution(block: Any, kind: Callable[..., nn.Module] = nn.Conv2d) -> nn.Module:
    options, turned = block._kwargs, kind is nn.ConvTranspose2d
    channels = block.weight.shape[0 if turned else 1] * (1 if turned else options["num_group"])
    layer = kind(
        channels,
        options["num_filter"],
        options["kernel"],
        options["stride"],
        options["pad"],
        dilation=options["dilate"],
        groups=options["num_group"],
        bias=block.bias is not None,
        **({"output_padding": options["adj"]} if turned else {}),
    )
    return nn.Sequential(_with_values(layer, block, "weight", "bias"), *_activation(block.act))


def _normalization(block: Any) -> nn.Module:
    layer = nn.BatchNorm2d(block.gamma.shape[0], block._kwargs["eps"], 1 - block._kwargs["momentum"])
    _with_values(layer, block, "gamma", "beta", "running_mean", "running_var")
    return layer


def _pooling(block: Any) -> nn.Module:
    options = block._kwargs
    if options["global_pool"]:
        return nn.AdaptiveAvgPool2d(1)
    size = options["kernel"], options["stride"], options["pad"]
    kind = nn.MaxPool2d if options["pool_type"] == "max" else nn.AvgPool2d
    return kind(*size, ceil_mode=options["pooling_convention"] == "full")


def _activation(block: Any) -> list[nn.Module]:
    return [] if block is None else [ACTIVATIONS[block._act_type]()]


def _with_values(layer: nn.Module, block: Any, *names: str) -> nn.Module:
    """Give a layer the values of a block's parameters, whose names here are in PyTorch's order."""
    tensors = [layer.weight, layer.bias]
    if len(names) > 2:
        tensors += [layer.running_mean, layer.running_var]
    with torch.no_grad():
        for tensor, name in zip(tensors, names):
            if tensor is not None:
                tensor.copy_(tensor_of(getattr(block, name)))
    return layer


def tensor_of(parameter: Any) -> torch.Tensor:
    """Return the value of a parameter of a Gluon net."""
    return torch.from_numpy(parameter.data().asnumpy())


def _each(blocks: Any) -> nn.Module:
    return nn.Sequential(*map(torch_net, blocks))


LAYERS: dict[str, Callable[[Any], nn.Module]] = {
    "HybridSequential": _each,
    "HeadsNet": Heads,
    "SSD": SSD,
    "Tiny": Tiny,
    "ResNetV1": lambda block: nn.Sequential(torch_net(block.features), torch_net(block.output)),
    "BasicBlockV1": Residual,
    "Dense": _dense,
    "Conv2D": _convolution,
    "Conv2DTranspose": lambda block: _convolution(block, nn.ConvTranspose2d),
    "BatchNorm": _normalization,
    "MaxPool2D": _pooling,
    "AvgPool2D": _pooling,
    "GlobalAvgPool2D": _pooling,
    "Activation": lambda block: _activation(block)[0],
    "Flatten": lambda block: nn.Flatten(),
}
