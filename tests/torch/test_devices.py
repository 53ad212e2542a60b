"""Devices and engines by name, and errors on a device."""

import os
from typing import Any

import pytest
import torch

from multifit.gluon.compat import mx
from multifit.gluon.runner import Runner as MXNetRunner
from multifit.torch.devices import why_inexact
from multifit.torch.traced import runner
from tests.torch.place import DEVICE
from tests.torch.runs import BATCHES, estimator_of


def test_the_plan_names_the_device() -> None:
    estimator = estimator_of()
    estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert estimator.plan is not None and estimator.plan.devices == (f"{DEVICE} (torch)",)


@pytest.mark.parametrize("context", ["cuda:77", "cpu:1", "nonsense", "meta", ["cpu", "cpu"], 3.5])
def test_devices_that_do_not_exist(context: Any) -> None:
    with pytest.raises(ValueError, match="context: .*give one device, such as"):
        estimator_of(context=context)


@pytest.mark.parametrize("context", [None, "cpu", mx.cpu(), [mx.cpu(0)], torch.device("cpu")], ids=str)
def test_devices_that_do(context: Any) -> None:
    estimator = estimator_of(context=context)
    assert estimator.context == [mx.cpu(0)]


def test_auto_is_torch_for_its_devices(caplog: Any) -> None:
    assert isinstance(estimator_of(engine="auto", context=torch.device("cpu"))._runner, runner.Runner)
    assert 'engine: torch, as context is "cpu"' in caplog.text
    assert type(estimator_of(engine="auto", context=mx.cpu())._runner) is MXNetRunner
    with pytest.raises(ValueError, match="CUDA"):
        estimator_of(engine="auto", context="cuda:77")


def test_auto_is_mxnet_for_a_gpu_that_torch_lacks_too() -> None:
    assert runner.has(mx.cpu()) and not runner.has(mx.gpu(77))
    with pytest.raises(ValueError, match=r"gpu\(77\) does not exist"):
        estimator_of(engine="auto", context=mx.gpu(77))


def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # what the user has set is kept
    assert why_inexact(torch.device("cpu")) == ""
    assert "cuda:0 may round differently each time; call torch.use" in why_inexact(torch.device("cuda:0"))
    assert estimator_of(context="cpu")._runner.why_inexact() == ""
    try:
        runner.be_deterministic()
        assert (
            why_inexact(torch.device("cuda:0")) == ""
            and torch.is_deterministic_algorithms_warn_only_enabled()
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_an_error_on_the_device_is_reported_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from multifit.torch.traced.computation import WholeComputation

    def fail(self: Any, given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(WholeComputation, "run", fail)
    with pytest.raises(RuntimeError, match="(?s)out of memory.*raised in .* on torch"):
        estimator_of().fit(BATCHES, epochs=1, event_handlers=[])
