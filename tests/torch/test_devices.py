"""Devices and engines by name, and the precision, of bridged nets."""

from typing import Any

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.gluon.engine import Engine as MXNetEngine
from multifit.torch.from_gluon.engine import Engine, has
from tests.torch.place import DEVICE
from tests.torch.runs import BATCHES, assert_equal, estimator_of


@pytest.mark.parametrize("context", [None, "cpu", mx.cpu(), [mx.cpu(0)], torch.device("cpu")], ids=str)
def test_devices(context: Any) -> None:
    estimator = estimator_of(context=context)
    device = str(DEVICE if context is None else "cpu")
    assert str(estimator.context[0]).startswith(device)
    assert estimator.check(BATCHES).devices == (f"{device} (torch)",)


REFUSED: dict[str, dict[str, Any]] = {
    "context: .*give one device, such as": {},
    "CUDA": {"engine": "auto", "context": "cuda:77"},
    r"gpu\(77\) does not exist": {"engine": "auto", "context": mx.gpu(77)},
    '"float16", which MXNet cannot train in; give .* or engine="torch"': {
        "engine": "mxnet", "precision": "float16"
    },
}  # fmt: skip
ODD: list[Any] = ["cuda:77", "cpu:1", "nonsense", "meta", ["cpu", "cpu"], 3.5]


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    for options in [REFUSED[message]] if REFUSED[message] else [{"context": each} for each in ODD]:
        with pytest.raises(ValueError, match=message):
            estimator_of(**options)


def test_auto_is_torch_for_its_devices(caplog: Any) -> None:
    assert isinstance(estimator_of(engine="auto", context=torch.device("cpu"))._engine, Engine)
    assert 'engine: torch, as context is "cpu"' in caplog.text
    assert type(estimator_of(engine="auto", context=mx.cpu())._engine) is MXNetEngine
    assert has(mx.cpu()) and not has(mx.gpu(77))


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


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU computes in float16")
def test_float16_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match='precision is "float16", which needs a GPU, not cpu'):
        estimator_of(precision="float16").fit(BATCHES, epochs=1)
