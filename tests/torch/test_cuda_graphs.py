"""Steps as CUDA graphs: replays compute what operators do; see `cuda_graphs` for those on the CPU."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from multifit.balance import FAMO, GramianMethod, PCGrad, UPGrad
from multifit.torch.traced import program
from multifit.torch.traced.result import Result
from tests.torch.cuda_graphs import counted_replays
from tests.torch.place import DEVICE
from tests.torch.runs import BATCHES, assert_equal, estimator_of, values
from tests.torch.test_accumulation import rhythms
from tests.torch.test_hooks import Double, Penalty


def fit(kind: str = "float64", handlers: Any = (), **options: Any) -> Any:
    estimator = estimator_of(kind, **options)
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=list(handlers))
    return dict(history), values(estimator), estimator.predict(BATCHES)


class ByLosses(GramianMethod):
    """Weighs tasks by their losses."""

    def weights(self, measured: Any, state: Any) -> Any:
        return measured.losses, state


# the net, options, handlers, and how many graphs a training step replays: forward, and each backward pass
CASES: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "plain": ("float64", {}, [], 2),
    "by default": ("float64", {"compile": "auto"}, [], 2),
    "dropout and statistics": ("dropout", {}, [], 2),
    "accumulates": ("float64", {"trainers": rhythms()}, [], 2),
    "float16": ("dropout", {"precision": "float16", "accumulate": 3}, [], 2),
    "looks back": ("float64", {"balance": FAMO()}, [], 3),
    "compares features": ("float64", {"balance": PCGrad(on="features")}, [], 3),
    "compares parameters": ("float64", {"balance": UPGrad(on="parameters")}, [], 4),
    "compares parameters by losses": ("float64", {"balance": ByLosses(on="parameters")}, [], 4),
    "rows in float16": ("dropout", {"balance": UPGrad(on="parameters"), "precision": "float16"}, [], 4),
    "changes outputs": ("float64", {}, [Double()], 0),
    "changes the objective": ("float64", {}, [Penalty()], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_replays_compute_what_operators_do(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, options, handlers, of_step = CASES[case]
    expected = fit(kind, handlers, **{**options, "compile": False})
    replays = counted_replays(monkeypatch)
    for one, other in zip(expected, fit(kind, handlers, **{"compile": "cudagraphs", **options})):
        assert_equal(one, other, 1e-10)
    steps, predicted = 3 * len(BATCHES) - 1, len(BATCHES) - 1  # the first batch runs operator by operator
    assert replays.count == (of_step + 1) * steps + predicted


def test_results_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def views(**options: Any) -> list[Any]:
        estimator = estimator_of(**options)
        results = [estimator.fit_batch(batch) for batch in BATCHES]
        results += [estimator.evaluate_batch(batch) for batch in BATCHES]
        assert not any(each.backward_pass for each in results)  # whose memory they would keep
        views = [
            arrays for each in results for kind in ("pred", "loss") for arrays in each.views()[kind].values()
        ]
        return [array.asnumpy() for (array,) in views]

    expected, replays = views(compile=False), counted_replays(monkeypatch)
    found = views(compile="cudagraphs")
    assert replays.count and len(found) == len(expected)
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_results_are_copied_only_if_they_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    monkeypatch.setattr(Result, "keep", lambda result: copies.append(id(result)))
    replays, estimator = counted_replays(monkeypatch), estimator_of(compile="cudagraphs")
    estimator.fit(BATCHES, BATCHES, epochs=2)
    assert replays.count and not copies
    kept = [estimator.fit_batch(batch) for batch in BATCHES]
    assert copies == [id(result) for result in kept[:-1]]
    monkeypatch.undo()
    outputs = [result.outputs for result in kept[-2:]]
    kept[-1].views()
    for result in kept[-2:]:
        result.keep()
    assert [result.outputs is before for result, before in zip(kept[-2:], outputs)] == [False, True]


def test_nothing_is_captured_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    for one, other in zip(fit(context="cpu"), fit(context="cpu", compile="cudagraphs")):
        assert_equal(one, other)
    assert caplog.messages.count('compile="cudagraphs" does nothing on a CPU') == 1


@pytest.mark.parametrize("balance", [None, PCGrad()], ids=["whole", "branched"])
def test_a_capture_that_fails_changes_nothing(balance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **options: Any) -> None:
        raise RuntimeError("CUDA error")

    expected = fit("dropout", balance=balance, compile=False)
    counted_replays(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph", fails)
    for one, other in zip(expected, fit("dropout", balance=balance, compile="auto")):
        assert_equal(one, other)


@pytest.mark.parametrize("balance", [None, PCGrad()], ids=["whole", "branched"])
@pytest.mark.parametrize(("how", "warns"), [("auto", False), ("cudagraphs", True)])
def test_what_waits_for_the_device_is_not_captured(
    how: str, warns: bool, balance: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program, "WAITING", {"FullyConnected"})
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    replays, estimator = counted_replays(monkeypatch), estimator_of(compile=how, balance=balance)
    for _ in range(2):
        estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])
    assert not replays.count
    message = "FullyConnected cannot be captured as CUDA graphs: it waits for the device"
    assert caplog.messages.count(message) == warns


@pytest.mark.parametrize("how", [False, "cudagraphs"])
def test_autocast_of_the_user_does_not_apply(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted_replays(monkeypatch)
    expected, estimator = estimator_of(compile=False), estimator_of(compile=how)
    history = expected.fit(BATCHES, epochs=2, event_handlers=[])
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found = estimator.fit(BATCHES, epochs=2, event_handlers=[])
        outputs = estimator.predict(BATCHES)
    assert_equal(dict(history), dict(found), 1e-6)
    assert_equal(expected.predict(BATCHES), outputs, 1e-6)
