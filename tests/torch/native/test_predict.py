"""Predictions are what the net returns in evaluation mode; evaluations measure without training."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from multifit import DataError, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.distributed import World
from tests.common.ranks import run_ranks

from .nets import BODIES, columns, heads, loader, spec_of_heads


def expected(net: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return what a net returns for a batch in evaluation mode, by hand."""
    training = net.training
    net.eval()
    with torch.no_grad():
        kind, size = net(x)
    net.train(training)
    return {"kind": kind.numpy(), "size": size.numpy()}


def assert_equal(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert type(found[name]) is np.ndarray and found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12)


X = columns()[0]
DATA: dict[str, Any] = {
    "a loader": loader(),
    "a list": [(X[:7],), (X[7:],)],
    "a tuple": (X,),
    "a dict": {"x": X},
    "a tensor": X,
    "NumPy": X.numpy(),
    "lists of numbers": {"x": X.tolist()},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("body", [each for each in BODIES if each != "lazy"])
def test_predictions_are_those_of_the_net_in_evaluation_mode(body: str, training: bool) -> None:
    net = heads(body).train(training)
    net.body.requires_grad_(False)
    estimator, wanted = MultiEstimator(net, spec_of_heads()), expected(net, X)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for data in DATA.values():
        assert_equal(estimator.predict(data), wanted)
    assert all(each.training is training for each in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_lazy_modules_get_their_parameters() -> None:
    net = heads("lazy")
    found = MultiEstimator(net, spec_of_heads()).predict(X)
    assert_equal(found, expected(net, X))


def test_a_net_in_training_mode_within_a_fit_predicts_as_well() -> None:
    net = heads("batch normalisation")
    estimator = MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", {"lr": 0.1}))
    estimator.fit(loader(), epochs=1)
    assert_equal(estimator.predict(loader()), expected(net, X))


# what is given as activation, and the outputs by hand
ACTIVATIONS: dict[str, tuple[Any, Any, Any]] = {
    "names": ({"kind": "softmax", "size": "sigmoid"}, lambda kind: kind.softmax(1), torch.sigmoid),
    "a function": ({"size": np.exp, "kind": None}, lambda kind: kind, torch.exp),
    "none": (None, lambda kind: kind, lambda size: size),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations_are_applied(case: str) -> None:
    activation, kind, size = ACTIVATIONS[case]
    net = heads()
    outputs = {name: torch.from_numpy(each) for name, each in expected(net, X).items()}
    wanted = {"kind": kind(outputs["kind"]).numpy(), "size": size(outputs["size"]).numpy()}
    assert_equal(MultiEstimator(net, spec_of_heads()).predict(loader(), activation=activation), wanted)


def test_a_softmax_is_along_the_classes_of_the_loss() -> None:
    for loss in (nn.CrossEntropyLoss(), nn.NLLLoss(), functional.cross_entropy):
        net = nn.Conv1d(2, 3, 1)
        spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], losses={"o": LossSpec(loss, "o", "y")})
        found = MultiEstimator(net, spec).predict(torch.ones(4, 2, 5), activation="softmax")
        assert found["o"].shape == (4, 3, 5)
        np.testing.assert_allclose(found["o"].sum(1), 1, rtol=1e-5)
    spec = TaskSpec(inputs=["x"], outputs=["o"], labels=["y"], losses={"o": LossSpec(nn.MSELoss(), "o", "y")})
    found = MultiEstimator(net, spec).predict(torch.ones(4, 2, 3), activation="softmax")
    np.testing.assert_allclose(found["o"].sum(-1), 1, rtol=1e-5)  # it declares no axis


@pytest.mark.parametrize(
    ("activation", "found"),
    [
        ("softmax", "activation is 'softmax' for 2 outputs; give activation={'kind': 'softmax'}"),
        ({"kinds": "softmax"}, "there is no output 'kinds' (did you mean \"kind\"?)"),
        ({"kind": "softmaxx"}, "is 'softmaxx' (did you mean \"softmax\"?); valid is"),
        ({"size": "softmax"}, "a softmax along axis -1 of (6, 1) is 1 everywhere"),
    ],
)
def test_activations_that_do_not_fit(activation: Any, found: str) -> None:
    with pytest.raises(SpecError) as raised:
        MultiEstimator(heads(), spec_of_heads()).predict(loader(), activation=activation)
    assert found in str(raised.value)


class Sequences(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return 2 * x, x.sum(), x.sum(1).to(torch.bfloat16)


def test_outputs_that_cannot_be_joined_are_lists() -> None:
    spec = TaskSpec(
        inputs=["x"],
        outputs=["o", "sum", "low"],
        losses={"o": LossSpec(torch.sum, "o")},
        unused=["sum", "low"],
    )
    estimator = MultiEstimator(Sequences(), spec)
    found = estimator.predict([(torch.ones(2, 3),), (torch.ones(4, 5),)])
    assert [each.shape for each in found["o"]] == [(2, 3), (4, 5)]
    assert [float(each) for each in found["sum"]] == [6, 20]
    assert found["low"].dtype == np.float32 and found["low"].tolist() == [3, 3, 5, 5, 5, 5]
    along = estimator.predict([(torch.ones(3, 2),), (torch.ones(3, 4),)], batch_axis=1)
    assert along["o"].shape == (3, 6)


def test_outputs_are_written_to_files(tmp_path: Any) -> None:
    net = heads()
    found = MultiEstimator(net, spec_of_heads()).predict(loader(), output=tmp_path / "out")
    for name, wanted in expected(net, X).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-10)
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), found[name])


class Counter(nn.Module):
    """Adds up its inputs from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = total + self.weight * x
        return total, total


def test_state_is_carried_from_batch_to_batch() -> None:
    losses = {"o": LossSpec(torch.sum, "o")}
    spec = TaskSpec(inputs=["x", "total"], outputs=["o", "total"], losses=losses, state={"total": (0, 1)})
    estimator = MultiEstimator(Counter(), spec)
    for _ in range(2):
        found = estimator.predict([(torch.ones(2, 1),)] * 3)
        assert found["o"][:, 0].tolist() == [1, 1, 2, 2, 3, 3]


def test_a_batch_that_does_not_fit() -> None:
    estimator = MultiEstimator(heads(), spec_of_heads())
    with pytest.raises(DataError, match="declared 3 slots"):
        estimator.predict((X, X))
    with pytest.raises(RuntimeError) as raised:
        estimator.predict(X[:, :5])
    assert "the net's forward pass (evaluate), called with x (20, 5) float64" in raised.value.__notes__[0]


@pytest.mark.parametrize("gather", [True, False])
def test_ranks_divide_the_batches(gather: bool) -> None:
    wanted = expected(heads(), X)
    batches = [(X[:7],), (X[7:8],), (X[8:],)]  # of the second, one rank alone has a sample

    def predict(world: World) -> Any:
        net = heads(seed=world.rank)  # the first rank's values count
        return MultiEstimator(net, spec_of_heads(), world=world).predict(batches, gather=gather)

    rows = [[0, 1, 2, 7, *range(8, 12)], [3, 4, *range(12, 16)], [5, 6, *range(16, 20)]]
    for found, own in zip(run_ranks(3, predict), rows):
        assert_equal(found, wanted if gather else {name: each[own] for name, each in wanted.items()})


# ---------------------------------------------------------------------------------------- evaluations


def test_an_evaluation_measures_and_changes_nothing() -> None:
    net = heads("batch normalisation")
    estimator = MultiEstimator(net, spec_of_heads())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    figures = estimator.evaluate(loader())
    x, kind, size = columns()
    outputs = {name: torch.from_numpy(each) for name, each in expected(net, x).items()}
    assert figures["kind"] == pytest.approx(float(functional.cross_entropy(outputs["kind"], kind)), rel=1e-10)
    assert figures["size"] == pytest.approx(float(functional.mse_loss(outputs["size"], size)), rel=1e-10)
    assert net.training and all(each.grad is None for each in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_first_evaluated_batch_is_checked() -> None:
    spec = TaskSpec(
        inputs=["x"],
        outputs=["kind", "size", "other"],
        labels=["kind", "size"],
        losses={"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()},
        unused=["other"],
    )
    with pytest.raises(SpecError, match="outputs"):
        MultiEstimator(heads(), spec).evaluate(loader())
