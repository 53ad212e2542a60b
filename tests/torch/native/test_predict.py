"""Predictions are what the net returns in evaluation mode; evaluations measure without training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from multifit import DataError, LossSpec, MultiEstimator, SpecError, TaskSpec
from multifit.distributed import World
from tests.common.ranks import run_ranks

from .nets import BODIES, columns, heads, loader, spec_of_heads

X, KIND, SIZE = columns()


def expected(net: nn.Module) -> dict[str, Any]:
    """Return what a net returns for X in evaluation mode, by hand."""
    training = net.training
    with torch.no_grad():
        kind, size = net.eval()(X)
    net.train(training)
    return {"kind": kind.numpy(), "size": size.numpy()}


def assert_equal(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert type(found[name]) is np.ndarray and found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12)


DATA: list[Any] = [loader(), [(X[:7],), (X[7:],)], (X,), {"x": X}, X, X.numpy(), {"x": X.tolist()}]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_predictions_are_those_of_the_net_in_evaluation_mode(body: str, training: bool) -> None:
    net = heads(body).train(training)
    estimator = MultiEstimator(net, spec_of_heads())
    estimator.predict(X)  # which makes the parameters of lazy modules
    before, wanted = {name: value.clone() for name, value in net.state_dict().items()}, expected(net)
    net.body.requires_grad_(False)
    for data in DATA:
        assert_equal(estimator.predict(data), wanted)
    figures = estimator.evaluate(loader())
    outputs = {name: torch.from_numpy(each) for name, each in wanted.items()}
    assert figures["kind"] == pytest.approx(float(functional.cross_entropy(outputs["kind"], KIND)), rel=1e-10)
    assert figures["size"] == pytest.approx(float(functional.mse_loss(outputs["size"], SIZE)), rel=1e-10)
    assert all(each.training is training for each in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(each.grad is None for each in net.parameters())


# what is given as activation, and the outputs by hand
ACTIVATIONS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "names": ({"kind": "softmax", "size": "sigmoid"}, lambda kind: kind.softmax(1), torch.sigmoid),
    "a function": ({"size": np.exp, "kind": None}, lambda kind: kind, torch.exp),
    "none": (None, lambda kind: kind, lambda size: size),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations_are_applied(case: str) -> None:
    activation, kind, size = ACTIVATIONS[case]
    outputs = {name: torch.from_numpy(each) for name, each in expected(heads()).items()}
    wanted = {"kind": kind(outputs["kind"]).numpy(), "size": size(outputs["size"]).numpy()}
    assert_equal(MultiEstimator(heads(), spec_of_heads()).predict(loader(), activation=activation), wanted)


@pytest.mark.parametrize(
    ("loss", "axis"),
    [(nn.CrossEntropyLoss(), 1), (nn.NLLLoss(), 1), (functional.cross_entropy, 1), (nn.MSELoss(), -1)],
)
def test_a_softmax_is_along_the_classes_of_the_loss_or_else_along_the_last_axis(loss: Any, axis: int) -> None:
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], losses={"o": LossSpec(loss, "o", "y")})
    found = MultiEstimator(nn.Conv1d(2, 3, 1), spec).predict(torch.ones(4, 2, 5), activation="softmax")["o"]
    assert found.shape == (4, 3, 5)
    np.testing.assert_allclose(found.sum(axis), 1, rtol=1e-5)


def test_an_activation_that_does_not_fit() -> None:
    with pytest.raises(SpecError, match=r"a softmax along axis -1 of \(6, 1\) is 1 everywhere"):
        MultiEstimator(heads(), spec_of_heads()).predict(loader(), activation={"size": "softmax"})


class Sequences(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return 2 * x, x.sum(), x.sum(1).to(torch.bfloat16)


def test_outputs_that_cannot_be_joined_are_lists() -> None:
    losses, outputs = {"o": LossSpec(torch.sum, "o")}, ["o", "sum", "low"]
    estimator = MultiEstimator(
        Sequences(), TaskSpec(inputs=["x"], outputs=outputs, losses=losses, unused=outputs[1:])
    )
    found = estimator.predict([(torch.ones(2, 3),), (torch.ones(4, 5),)])
    assert [each.shape for each in found["o"]] == [(2, 3), (4, 5)]
    assert [float(each) for each in found["sum"]] == [6, 20]
    assert found["low"].dtype == np.float32 and found["low"].tolist() == [3, 3, 5, 5, 5, 5]
    along = estimator.predict([(torch.ones(3, 2),), (torch.ones(3, 4),)], batch_axis=1)
    assert along["o"].shape == (3, 6)


def test_outputs_are_written_to_files(tmp_path: Path) -> None:
    found = MultiEstimator(heads(), spec_of_heads()).predict(loader(), output=tmp_path / "out")
    for name, wanted in expected(heads()).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-10)
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), found[name])


def test_state_is_carried_from_batch_to_batch() -> None:
    def adds(net: Any, slots: Any) -> tuple[Tensor, Tensor]:
        return (slots["x"] + slots["total"],) * 2

    losses = {"o": LossSpec(torch.sum, "o")}
    spec = TaskSpec(
        inputs=["x", "total"], outputs=["o", "total"], losses=losses, state={"total": (0, 1)}, forward=adds
    )
    estimator = MultiEstimator(nn.Identity(), spec)
    for _ in range(2):
        found = estimator.predict([(torch.ones(2, 1),)] * 3)
        assert found["o"][:, 0].tolist() == [1, 1, 2, 2, 3, 3]


def test_a_batch_and_a_net_that_do_not_fit() -> None:
    estimator = MultiEstimator(heads(), spec_of_heads())
    with pytest.raises(DataError, match="declared 3 slots"):
        estimator.predict((X, X))
    with pytest.raises(RuntimeError) as raised:
        estimator.predict(X[:, :5])
    assert "the net's forward pass (evaluate), called with x (20, 5) float64" in raised.value.__notes__[0]
    with pytest.raises(SpecError, match="outputs: 2 declared"):
        MultiEstimator(nn.Linear(6, 3).double(), spec_of_heads()).evaluate(loader())


@pytest.mark.parametrize("gather", [True, False])
def test_ranks_divide_the_batches(gather: bool) -> None:
    def predict(world: World) -> Any:
        net = heads(seed=world.rank)  # the first rank's values count
        return MultiEstimator(net, spec_of_heads(), world=world).predict(batches, gather=gather)

    batches = [(X[:7],), (X[7:8],), (X[8:],)]  # of the second, one rank alone has a sample
    rows = [[0, 1, 2, 7, *range(8, 12)], [3, 4, *range(12, 16)], [5, 6, *range(16, 20)]]
    wanted = expected(heads())
    for found, own in zip(run_ranks(3, predict), rows):
        assert_equal(found, wanted if gather else {name: each[own] for name, each in wanted.items()})
