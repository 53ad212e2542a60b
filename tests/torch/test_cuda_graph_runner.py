"""A computation as CUDA graphs: when it is captured, and what surrounds a capture."""

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multifit.torch.traced import cuda_graphs
from multifit.torch.traced.computation import CompileMode, Computed, WholeComputation
from multifit.torch.traced.cuda_graphs import WARM_UP, CudaGraphRunner
from tests.torch.cuda_graphs import counted_replays
from tests.torch.place import DEVICE


class Doubled:
    """Twice the products with a weight; their sum, and two sums, are objectives. A count has no gradient.

    If it `reads` a number, it cannot be captured. `called` is called each time that it runs.
    """

    def __init__(
        self, requested: bool = True, reads: bool = False, called: Callable[[], object] = lambda: None
    ) -> None:
        self._reads, self._called = reads, called
        self.weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
        self.seen = torch.zeros((), device=DEVICE)
        names = ["x"], ["product", "total", "both", "count"], ["total", "both"]
        held = [self.weight, self.seen]
        self.logged: list[str] = []
        mode = CompileMode(captures=True, requested=requested, log=self.logged.append)
        self._run = CudaGraphRunner(WholeComputation(self.forward, held, held[:1], *names), mode)

    def __call__(self, x: torch.Tensor) -> Computed:
        return self._run({"other": x, "x": x})

    def forward(self, weight: Any, seen: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self._called()
        seen += 1
        product = 2 * x * weight
        if self._reads:
            product.sum().item()
        sums = torch.stack([product.sum(), product.detach().sum()])
        return product, product.sum(), sums, (x > 0).sum()


def numbers(*values: Any) -> list[torch.Tensor]:
    return [torch.tensor(value, device=DEVICE) for value in values]


def test_a_form_is_captured_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net = counted_replays(monkeypatch), Doubled()
    before = []  # results that keep their autograd graphs, which PyTorch made on another stream
    for batch, size in enumerate((2, 3, 2, 3, 2)):
        computed = net(torch.full((size,), float(batch), device=DEVICE))
        assert replays.count == max(0, batch - 1) + max(0, batch - 2)  # forward, and backward before
        product, total, both, count = computed.values.values()
        assert product.tolist() == [2 * batch] * size and both.tolist() == [2 * batch * size] * 2
        assert total == 2 * batch * size and count == size * (batch > 0)
        assert computed.captured == (batch >= 2) != product.requires_grad
        assert computed.backward_passes[0].gradients() == [2 * 2 * batch * size] and net.seen == batch + 1
        before.append(computed.values)


def test_gradients_of_objectives_are_weighted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_replays(monkeypatch)
    net, x = Doubled(), torch.ones(2, device=DEVICE)
    cases = (numbers(3.0, [5.0, 7.0]), 8), (None, 2), (numbers(1.0, [0.0, 1.0]), 1), (None, 2)
    for heads, expected in cases:
        assert net(x).backward_passes[0].gradients(heads) == [expected * 4]


def test_without_gradients_there_is_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net, x = counted_replays(monkeypatch), Doubled(), torch.ones(2, device=DEVICE)
    for learns in (True, False, True, False):
        with torch.set_grad_enabled(learns):
            assert net(x).values["total"] == 4
    assert replays.count == 2


def test_no_more_graphs_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, net = counted_replays(monkeypatch), Doubled()
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    for size in (2, 2, 3, 3, 2):
        assert len(net(torch.ones(size, device=DEVICE)).values["product"]) == size
    assert replays.count == 2


@pytest.mark.parametrize(("requested", "unused", "expected"), [(True, 0, 2), (False, 0, 0), (False, 1, 2)])
def test_graphs_need_room_unless_the_user_requested_them(
    requested: bool, unused: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, net = counted_replays(monkeypatch), Doubled(requested)
    memory = {"mem_get_info": (49, 100), "memory_reserved": 30, "max_memory_allocated": 30 - unused}
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    for _ in range(3):
        assert net(torch.ones(2, device=DEVICE)).values["total"] == 4
    assert replays.count == expected
    message = "a program is not captured as CUDA graphs: half of the GPU's memory is in use"
    assert net.logged == ([] if expected else [message])


def test_what_cannot_be_captured_runs_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_replays(monkeypatch)
    net = Doubled(reads=True)
    for batch, size in enumerate((2, 2, 2, 3, 3)):
        product = net(torch.ones(size, device=DEVICE)).values["product"]
        assert product.tolist() == [2] * size and net.seen == batch + 1
    assert re.fullmatch("a program cannot be captured as CUDA graphs: CUDA error: operation .*", *net.logged)
    assert torch.nn.functional.dropout(torch.ones(99, device=DEVICE)).count_nonzero() < 99  # random numbers
    assert Doubled()(torch.ones(2, device=DEVICE)).values["total"] == 4  # another one can


def test_a_capture_is_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_replays(monkeypatch)
    seen: list[object] = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: seen.append("cleared"), False)
    for reads, after in ((False, 0), (True, 1)):
        net = Doubled(reads=reads, called=lambda: seen.append(gc.isenabled()))
        for _ in range(2):
            net(torch.ones(2, device=DEVICE))
        assert seen == [True] * (1 + WARM_UP) + ["cleared", False] + [True] * after and gc.isenabled()
        seen.clear()


def test_gradients_may_be_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    replays, bias = counted_replays(monkeypatch), torch.nn.Parameter(torch.zeros(1, device=DEVICE))
    computation = WholeComputation(
        lambda bias, x: [x + bias], [bias], [bias], ["x"], ["objective"], ["objective"]
    )
    run = CudaGraphRunner(computation, CompileMode(captures=True, requested=True))
    for _ in range(4):
        (gradient,) = run({"x": torch.ones(1, device=DEVICE)}).backward_passes[0].gradients()
        assert gradient == 1
        gradient *= 2
    assert replays.count
