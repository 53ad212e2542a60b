"""Steps as CUDA graphs: replays compute what operators do; see `cuda_graphs` for those on the CPU."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multifit import LabelSpec, LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.balance import FAMO, STCH, UPGrad
from multifit.torch import cuda_graphs
from tests.torch.place import DEVICE

from .cuda_graphs import counted_replays
from .nets import Heads, columns, normalised, spec_of_heads

x, kind, size = columns(20)
BATCHES = [(x[i : i + 4], kind[i : i + 4], size[i : i + 4]) for i in range(0, 20, 4)]
UNKNOWN = [
    (x, kind, torch.where(torch.arange(4)[:, None] < n % 4, torch.nan, y))
    for n, (x, kind, y) in enumerate(BATCHES)
]
MISSABLE = TaskSpec(
    inputs=["x"], outputs=["kind", "size"], labels=["kind", LabelSpec("size", missing="nan")],
    losses={"kind": nn.CrossEntropyLoss(), "size": LossSpec(nn.MSELoss(), weight=0.5)},
)  # fmt: skip


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


def estimator_of(net: Callable[[], nn.Module] = Heads, spec: Any = None, **options: Any) -> MultiEstimator:
    torch.manual_seed(3)
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9}, clip_norm=1.0))
    return MultiEstimator(net().double(), spec or spec_of_heads(), trainers, context=DEVICE, **options)


def dropout() -> nn.Module:
    return Heads(nn.Sequential(normalised(), nn.Dropout(0.3)))


def fit(net: Any = Heads, data: Any = BATCHES, spec: Any = None, handlers: Any = (), **options: Any) -> Any:
    """Return figures, parameters and buffers, and predictions."""
    estimator = estimator_of(net, spec, **options)
    torch.manual_seed(4)
    estimator.fit(data, data, epochs=3, event_handlers=list(handlers))
    numbers = {name: each for name, each in estimator.history.items() if "time" not in name}
    values = {name: each.cpu().numpy() for name, each in estimator.net.state_dict().items()}
    return numbers, values, estimator.predict(data)


def assert_equal(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-9, atol=1e-12, err_msg=name)


def slow() -> dict[str, TrainerSpec]:
    """One trainer adds up three batches, the other updates after every second one."""
    return {
        "body": TrainerSpec("body.*", "sgd", {"lr": 0.1}, every=3, accumulate=True, clip_norm=0.1),
        "heads": TrainerSpec("(kind|size).*", "sgd", {"lr": 0.1}, every=2),
    }


class Scaled:
    """Scales the objectives."""

    def change_objective(self, estimator: Any, objectives: Any) -> Any:
        return [2 * each for each in objectives]


class Doubled:
    """Doubles outputs."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {name: 2 * each for name, each in outputs.items()}


BOUND = {
    "trainers": {name: TrainerSpec(f"{name}.*", "sgd", {"lr": 0.1}) for name in ("body", "kind", "size")}
}
BOUND["spec"] = spec_of_heads(size=LossSpec(nn.MSELoss(), trainers=["size", "body"]))  # type: ignore[assignment]
# options, and how many graphs a training step replays: forward and backward
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 2),
    "by default": ({"compile": "auto"}, 2),
    "dropout and statistics": ({"net": dropout}, 2),
    "missing labels": ({"data": UNKNOWN, "spec": MISSABLE}, 2),
    "gradients in one tensor": ({"net": OneBias}, 2),
    "accumulates": ({"trainers": slow()}, 2),
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
    batches = len(options.get("data", BATCHES))
    steps = 3 * batches - 1  # the first batch of a form runs operator by operator
    assert replays.count == (of_step + 1) * steps


def test_results_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(**options: Any) -> list[Any]:
        estimator = estimator_of(**options)
        results = [estimator.fit_batch(batch) for batch in BATCHES]
        results += [estimator.evaluate_batch(batch) for batch in BATCHES]
        assert not any(
            each.requires_grad for r in results for each in (*r.outputs.values(), *r.objectives.values())
        )
        return [
            [*r.outputs.values(), *r.objectives.values(), *(p for each in r.parts.values() for p in each)]
            for r in results
        ]

    expected, replays = kept(compile=False), counted_replays(monkeypatch)
    found = kept(compile="cudagraphs")
    assert replays.count
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


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


def test_so_many_forms_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = counted_replays(monkeypatch)
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    estimator = estimator_of(compile="cudagraphs")
    for rows in (4, 4, 3, 3, 4):
        estimator.fit_batch(tuple(each[:rows] for each in BATCHES[0]))
    assert replays.count == 2 * 2
    monkeypatch.setattr(cuda_graphs, "MAX_FORMS", 1)
    forgetful = estimator_of(compile="cudagraphs")
    for rows in (4, 3, 2, 4, 3, 2):
        forgetful.fit_batch(tuple(each[:rows] for each in BATCHES[0]))
    assert replays.count == 2 * 2


@pytest.mark.skipif(DEVICE.type == "cuda", reason="is for CPUs")
def test_nothing_is_captured_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cuda_graphs, "CudaGraphs")
    assert_equal(fit(compile="cudagraphs"), fit(compile=False))
