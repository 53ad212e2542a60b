"""``compile="cudagraphs"``: replays compute what operators do; see `cuda_graphs` for those on the CPU."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from multifit import GradientAccumulation
from multifit.balance import Uncertainty
from multifit.torch.engine import captured
from tests.torch.cuda_graphs import counted_replays
from tests.torch.place import DEVICE
from tests.torch.runs import BATCHES, assert_equal, estimator_of, values
from tests.torch.test_accumulation import rhythms
from tests.torch.test_hooks import Double, Penalty


def fit(kind: str = "float64", handlers: Any = (), **options: Any) -> Any:
    estimator = estimator_of(kind, **options)
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=list(handlers))
    return dict(history), values(estimator), estimator.predict(BATCHES)


@pytest.mark.parametrize(
    ("kind", "options", "handlers"),
    [
        ("float64", {}, []),
        ("dropout", {}, []),
        ("float64", {"trainers": rhythms()}, []),
        ("dropout", {"precision": "float16"}, [GradientAccumulation(3)]),
        ("float64", {"balance": Uncertainty()}, []),
        ("float64", {}, [Double(), Penalty()]),
    ],
    ids=["plain", "dropout and statistics", "accumulates", "float16", "balances", "changes outputs"],
)
def test_replays_compute_what_operators_do(
    kind: str, options: Any, handlers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, replays = fit(kind, handlers, **options), counted_replays(monkeypatch)
    for one, other in zip(expected, fit(kind, handlers, compile="cudagraphs", **options)):
        assert_equal(one, other, 1e-10)
    assert replays.count > 2 * len(BATCHES)


def test_nothing_is_captured_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    for one, other in zip(fit(context="cpu"), fit(context="cpu", compile="cudagraphs")):
        assert_equal(one, other)
    assert caplog.messages.count('compile="cudagraphs" does nothing on a CPU') == 1


class Doubled(torch.nn.Module):
    """Twice the products with a weight, and figures without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen += 1
        product = 2 * x * self.weight
        return product, product.detach().sum(), (x > 0).sum()


def test_a_form_is_captured_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, module = counted_replays(monkeypatch), Doubled().to(DEVICE)
    call = captured.Captured(module, DEVICE)
    for batch, size in enumerate((2, 3, 2, 3, 2)):
        x = torch.full((size,), float(batch), device=DEVICE)
        product, total, count = call(x)
        assert replays.count == max(0, batch - 1) + max(0, batch - 2)  # forward, and backward before
        assert product.tolist() == [2 * batch] * size
        assert total == 2 * batch * size and count == size * (batch > 0)
        (gradient,) = torch.autograd.grad(product.sum(), [module.weight])
        assert gradient == 2 * batch * size and module.seen == batch + 1
        assert product.requires_grad and not total.requires_grad and not count.requires_grad


def test_each_mode_and_each_argument_that_learns_is_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = counted_replays(monkeypatch)
    call, x = captured.Captured(Doubled().to(DEVICE), DEVICE), torch.ones(2, device=DEVICE)
    for learns in (False, True):
        for _ in range(2):
            given = x.clone().requires_grad_(learns)
            product = call(given)[0].sum()
        (gradient,) = torch.autograd.grad(product, [given], allow_unused=True) if learns else (None,)
        assert gradient is None or gradient.tolist() == [2, 2]
    with torch.no_grad():
        assert not any(each.requires_grad for _ in range(2) for each in call(x))
    assert replays.count == 4


def test_no_more_graphs_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, module = counted_replays(monkeypatch), Doubled().to(DEVICE)
    monkeypatch.setattr(captured, "MAX_GRAPHS", 1)
    call = captured.Captured(module, DEVICE)
    for size in (2, 2, 3, 3, 2):
        assert len(call(torch.ones(size, device=DEVICE))[0]) == size
    assert replays.count == 2


def test_what_cannot_be_captured_runs_without_a_graph(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why = "CUDA error: operation not permitted when stream is capturing"

    def fails(*_: Any, **options: Any) -> None:
        raise RuntimeError(f"{why}\nCompile with TORCH_USE_CUDA_DSA")

    counted_replays(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph", fails)
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    module = Doubled().to(DEVICE)
    call = captured.Captured(module, DEVICE)
    for batch, size in enumerate((2, 2, 2, 3, 3)):
        assert call(torch.ones(size, device=DEVICE))[0].tolist() == [2] * size and module.seen == batch + 1
    (record,) = caplog.records
    assert record.message == f'compile="cudagraphs": nothing is captured: {why}'
