"""Methods of losses: what they refuse."""

from typing import Any

import numpy as np
import pytest

from multifit import Every, LabelSmoothing, LossSpec, MixUp, MultiEstimator, SpecError
from multifit.balance import GLS, LossMethod, UPGrad
from tests.common.nets import hybridized
from tests.common.shared_nets import two_heads
from tests.common.specs import BCE, CE, digit_spec
from tests.gluon.balance.test_losses import BATCHES, fitted

from mxnet import nd  # isort: skip


class Wide(LossMethod):
    """Remembers something that does not fit on the device."""

    def start(self, tasks: int) -> dict:
        return {"history": np.zeros((tasks, 3))}

    def weights(self, measured: Any, state: dict) -> tuple: ...


def own_gradient(out: Any, label: Any) -> Any:
    """A loss that ignores the gradient that it receives."""
    return -nd.log(nd.pick(nd.SoftmaxOutput(out, label), label))


class Incomplete:
    """Half a method."""

    def start(self, tasks: int) -> dict: ...
    def weights(self, measured: Any, state: dict) -> tuple: ...


NO_WEIGHT = {name: LossSpec(fn, weight=0) for name, fn in (("digit", CE), ("parity", BCE))}
PAIRS = {name: LossSpec(BCE, "parity", "parity") for name in ("a", "a_b", "b", "b_b")}
# fmt: off
ERRORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "balance: it is the class GLS; give an instance: GLS()": (GLS, {}),
    "balance: it is 'UPGrad'; valid is a method of multifit.balance": ("UPGrad", {}),
    'Incomplete has no "needs", "on_device", "every", "groups"; derive it from': (Incomplete(), {}),
    "Wide.start(2) returns history of shape (2, 3); on the device, a method remembers": (Wide(), {}),
    'tasks["a"]: there is no loss "digits" (did you mean "digit"?)': (GLS(tasks={"a": ["digits"]}), {}),
    'tasks["a"] has no loss': (GLS(tasks={"a": []}), {}),
    'the loss "digit" is in the tasks "a", "b"': (GLS(tasks={"a": ["digit"], "b": ["digit"]}), {}),
    'the task "digit" has the name of a loss that is not in it': (GLS(tasks={"digit": ["parity"]}), {}),
    'there is one task, "a", and nothing to weigh it against': (GLS(tasks={"a": ["digit", "parity"]}), {}),
    'losses of weight 0 have no gradient, which leaves one task, "digit", and nothing to':
        (UPGrad(), {"losses": {"digit": CE, "parity": LossSpec(BCE, weight=0)}}),
    "losses of weight 0 have no gradient, which leaves no task to weigh; leave balance= out":
        (UPGrad(), {"losses": NO_WEIGHT}),
    'the figure "weight_digit" is also that of a loss or metric':
        (GLS(), {"losses": {"digit": CE, "weight_digit": LossSpec(BCE, "parity", "parity")}}),
    'two pairs of tasks have the figure "cosine_a_b_b"; rename a task':
        (GLS(), {"losses": PAIRS, "unused": ["digit"]}),
}
# fmt: on


@pytest.mark.parametrize("message", ERRORS)
def test_what_cannot_be_weighed(message: str) -> None:
    method, changes = ERRORS[message]
    with pytest.raises(SpecError) as raised:
        MultiEstimator(two_heads(), digit_spec(**changes), balance=method)
    assert message in str(raised.value)


def test_a_loss_that_ignores_its_gradient_cannot_be_weighed() -> None:
    spec = digit_spec(losses={"digit": own_gradient, "parity": BCE})
    with pytest.raises(SpecError) as raised:
        fitted(two_heads(), GLS(), BATCHES, spec=spec)
    assert 'losses["digit"]: it ignores the gradient that it receives, so balance= would' in str(raised.value)


@pytest.mark.parametrize(
    ("method", "handler"),
    [(GLS(), MixUp(loss="digit")), (UPGrad(), Every(2, "batch", LabelSmoothing()))],
    ids=["MixUp", "a smoothing"],
)
def test_handlers_that_blend_losses_are_refused_before_the_first_batch(method: Any, handler: Any) -> None:
    class Unread(list):
        def __iter__(self) -> Any:
            raise AssertionError("a batch is read")

    with pytest.raises(SpecError) as raised:
        fitted(hybridized(two_heads()), method, Unread(BATCHES), handlers=[handler])
    assert "replaces a share of losses by others, which would not count as" in str(raised.value)
    assert ("balance: MixUp " if isinstance(handler, MixUp) else "LabelSmoothing") in str(raised.value)
    assert "leave the handler or balance= out" in str(raised.value)
