"""Devices and engines by name, and the precision, of bridged nets."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit import MultiEstimator
from multifit.gluon.compat import mx
from multifit.gluon.engine import Engine as MXNetRunner
from multifit.torch.from_gluon import engine
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec
from tests.torch.place import DEVICE
from tests.torch.runs import BATCHES, assert_equal, estimator_of


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
    assert str(estimator.context[0]).startswith(str(DEVICE if context is None else "cpu"))


def test_auto_is_torch_for_its_devices(caplog: Any) -> None:
    assert isinstance(estimator_of(engine="auto", context=torch.device("cpu"))._engine, engine.Engine)
    assert 'engine: torch, as context is "cpu"' in caplog.text
    assert type(estimator_of(engine="auto", context=mx.cpu())._engine) is MXNetRunner
    with pytest.raises(ValueError, match="CUDA"):
        estimator_of(engine="auto", context="cuda:77")


def test_auto_is_mxnet_for_a_gpu_that_torch_lacks_too() -> None:
    assert engine.has(mx.cpu()) and not engine.has(mx.gpu(77))
    with pytest.raises(ValueError, match=r"gpu\(77\) does not exist"):
        estimator_of(engine="auto", context=mx.gpu(77))


def test_the_net_alone_is_lowered() -> None:
    def fit(precision: str) -> dict[str, Any]:
        estimator, kinds = estimator_of(precision=precision), set()

        class Looks:
            def batch_end(self, estimator: Any, pred: Any) -> None:
                kinds.update(each.dtype for arrays in pred.values() for each in arrays)

        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[Looks()])
        arrays = [*estimator.predict(BATCHES).values(), *estimator.values().values()]
        assert {array.dtype.name for array in arrays} == {"float32"} and kinds == {torch.float32}
        return {name: np.array(history[name]) for name in ("train_loss", "val_loss")}

    full, low = fit("float32"), fit("bfloat16")
    assert_equal(full, low, 0.02)
    assert (low["train_loss"] != full["train_loss"]).all()


def test_precisions_that_are_refused() -> None:
    with pytest.raises(ValueError, match='"float16", which MXNet cannot train in; give .* or engine="torch"'):
        MultiEstimator(two_heads("hybridized"), two_head_spec(), precision="float16")
    if DEVICE.type == "cpu":
        with pytest.raises(ValueError, match='precision is "float16", which needs a GPU, not cpu'):
            estimator_of(precision="float16").fit(BATCHES, epochs=1)
