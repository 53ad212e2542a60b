"""Nets in low precision, labels whose axes change, and another default device."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from multifit import MetricSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.utils.seeding import preserve_rng

SPEC = TaskSpec(
    inputs=["x"], outputs=["y"], labels=["y"], losses={"y": nn.MSELoss()},
    metrics={"error": MetricSpec("mae", outputs="y", labels="y")},
)  # fmt: skip
SGD = TrainerSpec(".*", "sgd", {"lr": 0.1})


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)) for _ in "123"]


@pytest.mark.parametrize("forward", [None, lambda net, slots: net(slots["x"])])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_net_in_low_precision_has_losses_and_figures_in_float32(dtype: torch.dtype, forward) -> None:
    spec = TaskSpec(
        inputs=["x"], outputs=["y"], labels=["y"], losses=SPEC.losses, metrics=SPEC.metrics, forward=forward
    )
    torch.manual_seed(0)
    net = nn.Linear(3, 1).to(dtype)
    by_hand = nn.Linear(3, 1).to(dtype)
    by_hand.load_state_dict(net.state_dict())
    estimator = MultiEstimator(net, spec, SGD)
    assert "autocast" not in str(estimator.check(data()))
    estimator.fit(data(), data(), epochs=2, event_handlers=[])
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1)
    for x, y in data() * 2:
        optimizer.zero_grad()
        nn.functional.mse_loss(by_hand(x.to(dtype)).float(), y).backward()
        optimizer.step()
    assert all(map(torch.equal, net.parameters(), by_hand.parameters()))
    errors = torch.cat([by_hand(x.to(dtype)).float().detach() - y for x, y in data()])
    assert estimator.history["val_error"][-1] == pytest.approx(float(errors.abs().mean()), rel=1e-6)
    assert estimator.predict(data())["y"].dtype == "float32"


def test_autocast_sees_the_parameters_move() -> None:
    torch.manual_seed(0)
    estimator = MultiEstimator(nn.Linear(3, 1), SPEC, SGD, precision="bfloat16")
    losses = estimator.fit(data(), epochs=9, event_handlers=[])["train_loss"]
    assert losses[-1] < 0.8 * losses[0]


class Scale(nn.Module):
    """Returns its parameter, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x @ self.scale.T, self.scale, self.scale.reshape(3)


def test_an_output_that_is_a_parameter_is_that_of_before_the_update() -> None:
    seen: list[float] = []

    class Looks:
        def batch_end(self, estimator, pred) -> None:
            seen.extend(pred[name][0].flatten()[0].item() for name in ("scale", "flat"))

    spec = TaskSpec(
        inputs=["x"],
        outputs=["y", "scale", "flat"],
        labels=["y"],
        losses=SPEC.losses,
        unused=["scale", "flat"],
    )
    net = Scale()
    MultiEstimator(net, spec, SGD).fit(data()[:1], epochs=1, event_handlers=[Looks()])
    assert seen == [1, 1] and (net.scale != 1).any()


def test_labels_keep_their_axes() -> None:
    later = [(x, y[:, 0]) for x, y in data()]
    with pytest.raises(SpecError, match=r'the label "y" is \(4,\) float32, but \(4, 1\) float32 in'):
        MultiEstimator(nn.Linear(3, 1), SPEC, SGD).fit(data() + later, epochs=1, event_handlers=[])


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_random_states_are_kept_whichever_device_is_the_default(elsewhere: None) -> None:
    with preserve_rng():
        first = torch.rand(3, device="cpu")
    assert torch.equal(first, torch.rand(3, device="cpu"))


def test_a_net_trains_whichever_device_is_the_default(elsewhere: None) -> None:
    batches = [(torch.ones(4, 3, device="cpu"), torch.ones(4, 1, device="cpu"))] * 2
    net = nn.Linear(3, 1, device="cpu")
    history = MultiEstimator(net, SPEC, SGD, context="cpu").fit(batches, batches, epochs=2, event_handlers=[])
    assert history["val_loss"][1] < history["val_loss"][0]
