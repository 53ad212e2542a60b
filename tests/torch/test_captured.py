"""``compile="cudagraphs"``: replays compute what operators do; see `cuda_graphs` for those on the CPU."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from multifit import GradientAccumulation
from multifit.balance import FAMO, Uncertainty
from multifit.torch.engine import captured
from multifit.torch.engine.captured import Captured, Step
from multifit.torch.engine.scaling import differentiate
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
        ("float64", {"balance": FAMO()}, []),
        ("float64", {}, [Double(), Penalty()]),
    ],
    ids=[
        "plain",
        "dropout and statistics",
        "accumulates",
        "float16",
        "balances",
        "looks back",
        "changes outputs",
    ],
)
def test_replays_compute_what_operators_do(
    kind: str, options: Any, handlers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, replays = fit(kind, handlers, **options), counted_replays(monkeypatch)
    for one, other in zip(expected, fit(kind, handlers, **{"compile": "cudagraphs", **options})):
        assert_equal(one, other, 1e-10)
    assert replays.count > 2 * len(BATCHES)


def test_results_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def views(**options: Any) -> list[Any]:
        estimator = estimator_of(**options)
        results = [estimator.fit_batch(batch) for batch in BATCHES]
        results += [estimator.evaluate_batch(batch) for batch in BATCHES]
        outputs = [arrays for each in results for arrays in each.views()["pred"].values()]
        return [array.asnumpy() for (array,) in outputs]

    expected, replays = views(), counted_replays(monkeypatch)
    found = views(compile="cudagraphs")
    assert replays.count and len(found) == len(expected)
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_nothing_is_captured_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    for one, other in zip(fit(context="cpu"), fit(context="cpu", compile="cudagraphs")):
        assert_equal(one, other)
    assert caplog.messages.count('compile="cudagraphs" does nothing on a CPU') == 1


class Doubled:
    """Twice the products with a weight; their sum, and two sums, are objectives. A count has no gradient."""

    def __init__(self, insists: bool = True) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
        self.seen = torch.zeros((), device=DEVICE)
        held = [self.weight, self.seen]
        self.call = Captured(Step(self.forward, held, held[:1], [1, 2]), insists)

    def forward(self, weight: Any, seen: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen += 1
        product = 2 * x * weight
        sums = torch.stack([product.sum(), product.detach().sum()])
        return product, product.sum(), sums, (x > 0).sum()

    def gradient(self, results: Any, heads: Any = None) -> torch.Tensor:
        """Return the gradient of both objectives with respect to the weight, as the last call computes it."""
        graphs = self.call.graphs
        of = differentiate(results[1:3], [self.weight]) if graphs is None else graphs.gradients
        (gradient,) = of(heads)
        return gradient


def numbers(*values: Any) -> list[torch.Tensor]:
    return [torch.tensor(value, device=DEVICE) for value in values]


def test_a_form_is_captured_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net = counted_replays(monkeypatch), Doubled()
    before = []  # results that keep their autograd graphs, which PyTorch made on another stream
    for batch, size in enumerate((2, 3, 2, 3, 2)):
        results = net.call(torch.full((size,), float(batch), device=DEVICE))
        assert replays.count == max(0, batch - 1) + max(0, batch - 2)  # forward, and backward before
        product, total, both, count = results
        assert product.tolist() == [2 * batch] * size and both.tolist() == [2 * batch * size] * 2
        assert total == 2 * batch * size and count == size * (batch > 0)
        assert any(each.requires_grad for each in results) == (batch < 2)
        assert net.gradient(results) == 2 * 2 * batch * size and net.seen == batch + 1
        before.append(results)


def test_gradients_of_objectives_are_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_replays(monkeypatch)
    net, x = Doubled(), torch.ones(2, device=DEVICE)
    cases = (numbers(3.0, [5.0, 7.0]), 8), (None, 2), (None, 2), (numbers(1.0, [0.0, 1.0]), 1)
    for heads, expected in cases:
        assert net.gradient(net.call(x), heads) == expected * 4


def test_without_gradients_there_is_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net, x = counted_replays(monkeypatch), Doubled(), torch.ones(2, device=DEVICE)
    for learns in (True, False, True, False):
        with torch.set_grad_enabled(learns):
            assert net.call(x)[1] == 4
    assert replays.count == 2


def test_no_more_graphs_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net = counted_replays(monkeypatch), Doubled()
    monkeypatch.setattr(captured, "MAX_GRAPHS", 1)
    for size in (2, 2, 3, 3, 2):
        assert len(net.call(torch.ones(size, device=DEVICE))[0]) == size
    assert replays.count == 2


@pytest.mark.parametrize(("insists", "expected"), [(True, 2), (False, 0)])
def test_graphs_need_room_unless_the_user_insists(
    insists: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, net = counted_replays(monkeypatch), Doubled(insists)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (49, 100))
    for _ in range(3):
        assert net.call(torch.ones(2, device=DEVICE))[1] == 4
    assert replays.count == expected


@pytest.mark.parametrize(("insists", "level"), [(True, "WARNING"), (False, "DEBUG")])
def test_what_cannot_be_captured_runs_without_a_graph(
    insists: bool, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    why = "CUDA error: operation not permitted when stream is capturing"

    def fails(*_: Any, **options: Any) -> None:
        raise RuntimeError(f"{why}\nCompile with TORCH_USE_CUDA_DSA")

    counted_replays(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph", fails)
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    caplog.set_level(logging.DEBUG, "multifit")
    net = Doubled(insists)
    for batch, size in enumerate((2, 2, 2, 3, 3)):
        assert net.call(torch.ones(size, device=DEVICE))[0].tolist() == [2] * size and net.seen == batch + 1
    (record,) = caplog.records
    assert record.levelname == level
    assert record.message == f"CUDA graphs: nothing is captured, Python launches every operator: {why}"
