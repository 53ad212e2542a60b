"""Steps as CUDA graphs: replays compute what operators do; see `cuda_graphs` for those on the CPU."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multifit import LossSpec, MultiEstimator, TrainerSpec
from multifit.balance import FAMO, STCH, UPGrad
from multifit.torch import cuda_graphs
from tests.torch.place import DEVICE

from .cuda_graphs import counted_replays
from .nets import MISSABLE, SGD, Heads, batches, normalised, spec_of_heads

BATCHES = batches(4, 4, 4, 4, 4)
UNKNOWN = [
    (x, kind, torch.where(torch.arange(4)[:, None] < n % 4, torch.nan, size))
    for n, (x, kind, size) in enumerate(BATCHES)
]


class Waits(Heads):
    """Reads a number while it computes."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x * float(x.abs().max() > -1))


class OneBias(Heads):
    """Adds two parameters that get the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        kind, size = super().forward(x)
        return kind, size + (self.one + self.other)


def dropout() -> nn.Module:
    return Heads(nn.Sequential(normalised(), nn.Dropout(0.3)))


def estimator_of(net: Callable[[], nn.Module] = Heads, spec: Any = None, **options: Any) -> MultiEstimator:
    torch.manual_seed(3)
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", SGD, clip_norm=1.0))
    return MultiEstimator(net().double(), spec or spec_of_heads(), trainers, context=DEVICE, **options)


def fit(net: Any = Heads, data: Any = BATCHES, spec: Any = None, handlers: Any = (), **options: Any) -> Any:
    """Return figures, parameters and buffers, and predictions."""
    estimator = estimator_of(net, spec, **options)
    torch.manual_seed(4)
    estimator.fit(data, data, epochs=2, event_handlers=list(handlers))
    numbers = {name: each for name, each in estimator.history.items() if "time" not in name}
    values = {name: each.cpu().numpy() for name, each in estimator.net.state_dict().items()}
    return numbers, values, estimator.predict(data)


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-9, atol=1e-12, err_msg=name)


class Scaled:
    """Scales the objectives."""

    def change_objective(self, estimator: Any, objectives: Any) -> Any:
        return [2 * each for each in objectives]


class Doubled:
    """Doubles outputs."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {name: 2 * each for name, each in outputs.items()}


SLOW = {  # one trainer adds up three batches, the other updates after every second one
    "body": TrainerSpec("body.*", "sgd", {"lr": 0.1}, every=3, accumulate=True, clip_norm=0.1),
    "heads": TrainerSpec("(kind|size).*", "sgd", {"lr": 0.1}, every=2),
}
BOUND = {
    "trainers": {name: TrainerSpec(f"{name}.*", "sgd", {"lr": 0.1}) for name in ("body", "kind", "size")},
    "spec": spec_of_heads(size=LossSpec(nn.MSELoss(), trainers=["size", "body"])),
}
# options, and how many graphs a training step replays: forward and backward
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 2),
    "by default": ({"compile": "auto"}, 2),
    "dropout and statistics": ({"net": dropout}, 2),
    "missing labels": ({"data": UNKNOWN, "spec": MISSABLE}, 2),
    "gradients in one tensor": ({"net": OneBias}, 2),
    "accumulates": ({"trainers": SLOW}, 2),
    "accumulates all": ({"accumulate": 2, "data": BATCHES[:4]}, 2),
    "weighs losses": ({"balance": STCH()}, 2),
    "looks back": ({"balance": FAMO()}, 3),
    "compares gradients": ({"balance": UPGrad()}, 0),
    "bound losses": (BOUND, 3),
    "changes outputs": ({"handlers": [Doubled()]}, 0),
    "changes the objective": ({"handlers": [Scaled()]}, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_replays_compute_what_operators_do(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, of_step = CASES[case]
    expected, replays = fit(**{**options, "compile": False}), counted_replays(monkeypatch)
    assert_equal(fit(**{"compile": "cudagraphs", **options}), expected)
    steps = 2 * len(options.get("data", BATCHES)) - 1  # the first batch of a form runs operator by operator
    assert replays.count == (of_step + 1) * steps


def test_results_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(**options: Any) -> list[Any]:
        estimator = estimator_of(**options)
        results = [run(batch) for run in (estimator.fit_batch, estimator.evaluate_batch) for batch in BATCHES]
        parts = [[part for of_loss in each.parts.values() for part in of_loss] for each in results]
        tensors = [[*r.outputs.values(), *r.objectives.values(), *more] for r, more in zip(results, parts)]
        assert not any(each.requires_grad for of_batch in tensors for each in of_batch)
        return tensors

    expected, replays = kept(compile=False), counted_replays(monkeypatch)
    torch.testing.assert_close(kept(compile="cudagraphs"), expected)
    assert replays.count


@pytest.mark.parametrize(("how", "warns"), [("auto", False), ("cudagraphs", True)])
def test_what_cannot_be_captured_runs_operator_by_operator(
    how: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    expected, replays = fit(Waits, compile=False), counted_replays(monkeypatch)
    assert_equal(fit(Waits, compile=how), expected)
    assert not replays.count
    message = "steps cannot be captured as CUDA graphs: CUDA error: operation not permitted when stream"
    assert any(each.startswith(message) for each in caplog.messages) == warns


@pytest.mark.parametrize("how", ["auto", "cudagraphs"])
def test_by_default_half_of_the_memory_must_be_free(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = counted_replays(monkeypatch)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0.4, 1))
    fit(compile=how)
    assert bool(replays.count) == (how == "cudagraphs")


@pytest.mark.parametrize(
    ("limit", "rows"), [("MAX_GRAPHS", [4, 4, 3, 3, 4]), ("MAX_FORMS", [4, 3, 2, 4, 3, 2])]
)
def test_so_many_forms_are_captured_and_remembered(limit: str, rows: list[int], monkeypatch: Any) -> None:
    replays = counted_replays(monkeypatch)
    monkeypatch.setattr(cuda_graphs, limit, 1)
    estimator = estimator_of(compile="cudagraphs")
    for size in rows:
        estimator.fit_batch(tuple(each[:size] for each in BATCHES[0]))
    assert replays.count == (4 if limit == "MAX_GRAPHS" else 0)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="is for CPUs")
def test_nothing_is_captured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cuda_graphs, "CudaGraphs")
    assert_equal(fit(compile="cudagraphs"), fit(compile=False))
