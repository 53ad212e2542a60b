"""The two-head net in plain PyTorch: the loop as PyTorch's users write it, sums kept as tensors."""

import sys

import torch
from common import Data, serve
from torch import nn
from torch.nn import functional as F

__all__ = ["TwoHeads", "optimizer", "two_heads"]


class TwoHeads(nn.Module):
    """Two dense layers, and a head each for digit and parity."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.digit, self.parity = nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (N, 10) and (N, 1)."""
        features = self.body(image)
        return self.digit(features), self.parity(features)


def two_heads(data: Data) -> TwoHeads:
    """Return the net, with the initial parameters of all contenders."""
    net = TwoHeads()
    linears = [layer for layer in net.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer, (weight, bias) in zip(linears, data.parameters):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
    return net


def optimizer(net: nn.Module, name: str) -> torch.optim.Optimizer:
    """Return the optimizer of all contenders."""
    if name == "adam":
        return torch.optim.Adam(net.parameters(), lr=1e-3)
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def main(data: Data, name: str) -> None:
    """Train one epoch on each request."""
    net = two_heads(data)
    batches = [tuple(map(torch.from_numpy, batch)) for batch in data.batches()]
    torch_optimizer = optimizer(net, name)

    def epoch() -> list[float]:
        sums, samples = torch.zeros(4), 0
        for image, kind, odd in batches:
            digit, parity = net(image)
            digit_loss = F.cross_entropy(digit, kind)
            parity_loss = F.binary_cross_entropy_with_logits(parity, odd)
            torch_optimizer.zero_grad()
            (digit_loss + parity_loss).backward()
            torch_optimizer.step()
            with torch.no_grad():
                right = (digit.argmax(1) == kind).sum(), ((parity > 0) == (odd > 0.5)).sum()
                sums += torch.stack([digit_loss * len(image), parity_loss * len(image), *right])
            samples += len(image)
        return (sums / samples).tolist()

    serve(epoch)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    main(Data(sys.argv[1]), sys.argv[2])
