"""Methods of balancing on tensors: against Jacobians by hand, alone and on several ranks."""

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.balance import (
    DWA,
    FAMO,
    GLS,
    IMTLG,
    IMTLL,
    RLW,
    STCH,
    GradNorm,
    GramianMethod,
    LossMethod,
    PCGrad,
    Sum,
    Uncertainty,
    UPGrad,
)
from multifit.balance.protocol import weigh_gradients
from multifit.distributed import ALONE, World
from multifit.handlers.state import RunState
from multifit.torch import balance
from multifit.torch.balance import make_balancer
from tests.common.handlers import handler
from tests.common.ranks import run_ranks

from .nets import Heads, assert_equal_parameters, heads, loader, spec_of_heads

CPU = torch.device("cpu")
NAMES = ("a", "b", "c")


class Net(nn.Module):
    """Three heads, of which the last one branches earlier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 5)
        self.a, self.b, self.c = nn.Linear(5, 1), nn.Linear(5, 2), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = self.first(x).tanh()
        second = self.second(first).tanh()
        return self.a(second), self.b(second), self.c(first)


def spec_of(weights: Mapping[str, Any] | None = None, **options: Any) -> TaskSpec:
    losses = {
        name: LossSpec(nn.MSELoss(), name, name, weight=(weights or {}).get(name, 1.0), **options)
        for name in NAMES
    }
    return TaskSpec(inputs=["x"], outputs=list(NAMES), labels=list(NAMES), losses=losses)


class Step:
    """A net and its balancer; batches have 8 samples, of which `labels` tells which tasks have labels."""

    def __init__(self, method: Any, spec: TaskSpec | None = None, world: World = ALONE) -> None:
        torch.manual_seed(0)
        self.spec, self.net = spec or spec_of(), Net().double()
        self.parameters = dict(self.net.named_parameters())
        self.balancer: Any = make_balancer(method, self.spec, CPU, world, self.parameters)
        self.state = RunState()

    def result(self, seed: int = 0, labels: str = "abc", samples: slice = slice(None)) -> Any:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 4, dtype=torch.float64, generator=generator)[samples]
        weights = {term.key: term.spec.weight for term in self.spec.terms}
        norms = {name: 8.0 * (name in labels) for name in NAMES}
        outputs = zip(NAMES, self.net(x), (1.0, -30.0, 0.1)) if len(x) else ()
        objectives = {
            name: weights[name] * (name in labels) * (y - scale * x[:, :1]).pow(2).sum() / 8
            for name, y, scale in outputs
        }
        scale = SimpleNamespace(weights=weights, norms=norms)
        return SimpleNamespace(objectives=objectives, scale=scale, detach=lambda: None)

    def gradients(self, *arguments: Any, scale: float = 1.0, **options: Any) -> dict[str, Tensor | None]:
        for each in self.parameters.values():
            each.grad = None
        self.balancer.differentiate(self.result(*arguments, **options), self.state, scale)
        return {name: each.grad for name, each in self.parameters.items()}

    def jacobian(self, **options: Any) -> tuple[list[Any], dict[str, list[Tensor | None]]]:
        """Return the losses, and each parameter's gradients by task."""
        values, every = list(self.parameters.values()), []
        for name in NAMES:
            objective = self.result(**options).objectives[name]
            every.append(torch.autograd.grad(objective, values, allow_unused=True))
        losses = [each.item() for each in self.result(**options).objectives.values()]
        return losses, dict(zip(self.parameters, map(list, zip(*every))))

    def figures(self) -> dict[str, float]:
        return {name: value for means in self.balancer.means for name, value in means.read().items()}


of_both = pytest.mark.parametrize("on", ["parameters", "features"])
of_all = pytest.mark.parametrize("on", ["parameters", "first.*", "features"])
SHARED = {"first.weight", "first.bias", "second.weight", "second.bias"}


def gramian_of(gradients: Mapping[str, list[Tensor | None]], names: list[str]) -> np.ndarray:
    """Return the inner products of the losses' gradients of some parameters."""
    like = {name: next(each for each in gradients[name] if each is not None) for name in names}
    filled = [[torch.zeros_like(like[name]) if g is None else g for g in gradients[name]] for name in names]
    rows = np.stack([np.concatenate([each.ravel() for each in of_loss]) for of_loss in zip(*filled)])
    return rows @ rows.T


def gramian_of_features(step: Step, labels: str) -> np.ndarray:
    """Return inner products: the first two losses read one tensor, the third one another.

    If the first two are of one task, both tasks branch at the other one.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, dtype=torch.float64, generator=generator)
    first = step.net.first(x).tanh()
    second = step.net.second(first).tanh()
    of_one_task, gradients = len(step.balancer.tasks.names) == 2, []
    for term, read, scale in zip(step.spec.terms, (second, second, first), (1.0, -30.0, 0.1)):
        error = (getattr(step.net, term.key)(read) - scale * x[:, :1]).pow(2).sum() / 8
        loss = error * (term.key in labels) * term.spec.weight
        where = first if of_one_task else read
        gradients.append(torch.autograd.grad(loss, where, retain_graph=True)[0].flatten())
    products = [[one @ other if len(one) == len(other) else 0.0 for other in gradients] for one in gradients]
    return np.array(products)


def assert_combined(found: Any, gradients: Any, weights: Any, tolerance: float, shared: Any = SHARED) -> None:
    """Shared parameters have the weighted sum; others the gradient of their task."""
    for name, of_losses in gradients.items():
        factors = weights if name in shared else np.ones(len(weights))
        expected = sum(f * g for f, g in zip(factors, of_losses) if g is not None)
        given = torch.zeros_like(expected) if found[name] is None else found[name]
        torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance)


# Method, its options, the losses' declared weights, and the losses that have labels.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, float], str]] = {
    **{
        method.__name__: (method, {"preference": {"b": 2.0}, "normalize": "largest"}, {}, "abc")
        for method in (Sum, UPGrad, PCGrad, IMTLG, GradNorm)
    },
    "absent tasks": (UPGrad, {}, {}, "a"),
    "a weight of 0": (UPGrad, {}, {"c": 0}, "abc"),
    "two losses of one task": (UPGrad, {"tasks": {"both": ["a", "b"]}}, {}, "abc"),
}


@of_all
@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_jacobians_by_hand(case: str, on: str) -> None:
    kind, options, declared, labels = CASES[case]
    method = kind(on=on, **options)
    step = Step(method, spec_of(declared))
    found = step.gradients(labels=labels)
    losses, gradients = step.jacobian(labels=labels)
    tasks, of_loss = step.balancer.tasks.names, list(step.balancer.tasks.of_loss.values())
    first = {name for name in SHARED if name.startswith("first")}
    shared = SHARED if len(tasks) == 3 else first  # the second layer is that of one task
    compared = sorted(first if on == "first.*" else shared)
    inner = gramian_of_features(step, labels) if on == "features" else gramian_of(gradients, compared)
    groups = np.eye(len(tasks))[of_loss].T  # which losses are whose
    gramian, preference = groups @ inner @ groups.T, np.array([0.75, 1.5, 0.75])
    arguments = method, groups @ losses, gramian, np.ones(len(tasks)), method.start(len(tasks))
    weighed = len(step.balancer.tasks.weighed)
    weights, _ = weigh_gradients(
        *arguments, weighed=weighed, preference=preference if "preference" in options else None
    )
    assert_combined(found, gradients, weights[of_loss], 1e-9, shared)
    figures, lengths = step.figures(), np.sqrt(np.diag(gramian))
    assert found["c.weight"] is None or declared == {}
    for name, weight, length in zip(tasks, weights, lengths):
        expected = (weight, length) if length else (np.nan, np.nan)
        assert (figures[f"weight_{name}"], figures[f"gradnorm_{name}"]) == pytest.approx(
            expected, nan_ok=True
        )
    if labels == "abc" and len(tasks) == 3 and not declared:
        assert figures["cosine_a_b"] == pytest.approx(gramian[0, 1] / lengths[0] / lengths[1])
        assert np.isnan(figures["cosine_a_c"]) == (on == "features")


@of_all
def test_between_measured_batches_weights_stay(on: str) -> None:
    step = Step(UPGrad(on=on, every=3))
    first = step.gradients(seed=1)
    assert first["a.weight"] is not None
    weights = [step.figures()[f"weight_{name}"] for name in NAMES]
    step.state.step = 1
    _, gradients = step.jacobian()
    assert_combined(step.gradients(), gradients, weights, 1e-12)
    step.state.step = 3
    assert [step.figures()[f"weight_{name}"] for name in NAMES] == pytest.approx(weights)
    step.gradients()
    assert [step.figures()[f"weight_{name}"] for name in NAMES] != pytest.approx(weights)


@of_both
def test_gradients_are_added_and_scaled(on: str) -> None:
    step = Step(Sum(on=on))
    expected, figures = step.gradients(), step.figures()
    again = step.gradients(scale=2.0**16)
    assert step.figures() == pytest.approx(figures, nan_ok=True)
    for name, each in again.items():
        torch.testing.assert_close(each, 2.0**16 * expected[name])
    step.balancer.differentiate(step.result(), step.state, scale=2.0**16)
    for name, each in step.parameters.items():
        torch.testing.assert_close(each.grad, 2.0**17 * expected[name])


@of_both
def test_numbers_that_are_not_finite_change_no_weight(on: str) -> None:
    step = Step(UPGrad(on=on))
    step.gradients()
    before, figures = step.balancer.state(), step.figures()
    result = step.result(seed=1)
    result.objectives["a"] = result.objectives["a"] * torch.nan
    step.balancer.differentiate(result, step.state)
    after = step.balancer.state()
    np.testing.assert_equal(before, after)
    assert step.figures()["gradnorm_a"] == figures["gradnorm_a"]


@pytest.mark.parametrize(
    "method", [GradNorm(on="features"), GradNorm(smooth=0.5), Uncertainty(), STCH(), RLW()]
)
def test_a_state_continues_and_a_fork_changes_nothing(method: Any) -> None:
    def weights(step: Step, number: int) -> list[float]:
        step.state.step = number
        step.balancer = step.balancer.fork()  # whose figures begin anew
        if method.needs == "gramian":
            step.gradients(seed=number)
        else:
            step.balancer.weigh(step.result(seed=number), step.state)
        return [step.figures()[f"weight_{name}"] for name in NAMES]

    one, other = Step(method), Step(method)
    for number in range(3):
        weights(one, number)
    other.balancer.load(one.balancer.state())
    kept = one.balancer
    expected = weights(one, 3)
    assert weights(other, 3) == expected
    one.balancer = kept
    assert weights(one, 3) == expected


@of_all
@pytest.mark.parametrize("every", [1, 2])
def test_ranks_compute_what_one_process_does(on: str, every: int) -> None:
    parts = [slice(0, 3), slice(3, 8), slice(8, 8)]  # the last one has no samples

    def gradients(world: World) -> Any:
        step = Step(UPGrad(on=on, every=every), world=world)
        own = slice(None) if world.alone else parts[world.rank]
        found = []
        for step.state.step in range(2):
            found.append(step.gradients(samples=own))
        return found, step.figures()

    (expected, figures), ranks = gradients(ALONE), run_ranks(3, gradients)
    assert not any(isinstance(rank, Exception) for rank in ranks), ranks
    for number, each in enumerate(expected):
        for name, gradient in each.items():
            total = sum(rank[0][number][name] for rank in ranks if rank[0][number][name] is not None)
            torch.testing.assert_close(total, gradient, rtol=1e-10, atol=1e-12)
    for _, found in ranks:
        assert found == pytest.approx(figures, rel=1e-9, nan_ok=True)


def test_the_plan_says_what_tasks_share() -> None:
    step = Step(UPGrad())
    assert step.balancer.describe(step.result(), step.parameters) == (
        "tasks share 4 parameters and branch at 2 tensors; "
        'shared: "second.weight", "first.weight", "first.bias", "second.bias" (520 bytes)'
    )


def frozen(step: Step) -> None:
    for name in SHARED:
        step.parameters[name].requires_grad_(False)
    step.gradients()


class Wrong(GramianMethod):
    """Returns too many weights."""

    def solve(self, gramian: Any, step: int = 0) -> Any:
        return np.ones(5)


MISTAKES: list[tuple[Any, Callable[[Step], Any], str]] = [
    (UPGrad, print, "it is the class UPGrad; give an instance: UPGrad()"),
    (UPGrad(on="frist.*"), print, 'on="frist.*" matches no parameter'),
    (UPGrad(on="a.*"), Step.gradients, 'on="a.*" selects no parameter that tasks share'),
    (UPGrad(), frozen, "the tasks share no parameter"),
    (Wrong(), Step.gradients, "Wrong.solve returned an array of shape (5,)"),
]


@pytest.mark.parametrize(("method", "act", "message"), MISTAKES)
def test_mistakes_are_named(method: Any, act: Callable[[Step], Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        act(Step(method))
    assert message in str(caught.value)


# ---- methods of losses

LOSSES = [Uncertainty(), Uncertainty(optimizer="sgd"), IMTLL(), GLS(), DWA(1e3), STCH(), FAMO(every=2)]
BATCHES = ["abc", "abc", "ab", "c", "abc", "bc"]  # the tasks with labels


class Halves(LossMethod):
    """Weighs the tasks that are there by a half, whatever the losses are."""

    needs = "nothing"

    def weights(self, measured: Any, state: Any) -> Any:
        F = measured.F
        return F.minimum(0.5 * measured.present, 1.0) + state["zero"], {"zero": F.minimum(state["zero"], 0)}

    def start(self, tasks: int) -> Any:
        return {"zero": np.zeros(tasks)}


def weighed(method: Any, world: World = ALONE, norms: Callable[[float], Any] = float) -> Any:
    """Return the factors of the losses in some batches, the figures and the state."""
    step, found = Step(method, world=world), []
    own = slice(None) if world.alone else slice(4 * world.rank, 4 * world.rank + 4)
    for number, labels in enumerate(BATCHES):
        step.state.step, step.state.epoch = number, number // 2
        result = step.result(number, labels, own)
        scale = result.scale
        scale.norms = {name: norms(each) for name, each in scale.norms.items()}
        before = dict(result.objectives)
        step.balancer.weigh(result, step.state)
        pairs = [(before[key].item(), each.item()) for key, each in result.objectives.items()]
        found.append([each / loss if loss else 0.0 for loss, each in pairs])
        if step.balancer.looks_back:
            step.balancer.after_update(step.result(number + 100, labels, own))
    return found, step.figures(), step.balancer.state()


@pytest.mark.parametrize("method", [*LOSSES, Halves(), RLW()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("norms", [float, torch.tensor], ids=["numbers", "counted"])
def test_methods_compute_the_same_with_tensors(
    method: Any, norms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, figures, state = weighed(method)
    monkeypatch.setattr(balance, "ON_HOST", set())
    found, of_tensors, saved = weighed(method, norms=norms)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert of_tensors == pytest.approx(figures, rel=1e-12)
    assert saved["memory"].keys() == state["memory"].keys()
    for name, each in saved["memory"].items():
        np.testing.assert_allclose(each, state["memory"][name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", [STCH(), FAMO(), RLW()], ids=lambda each: type(each).__name__)
def test_ranks_weigh_the_losses_of_all(method: Any) -> None:
    expected, figures, _ = weighed(method)
    for found, of_rank, _ in run_ranks(2, lambda world: weighed(method, world)):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        assert of_rank == pytest.approx(figures, rel=1e-10)


def test_weights_of_some_batches() -> None:
    found, figures, _ = weighed(Halves())
    assert found == [[0.5 * (name in labels) for name in NAMES] for labels in BATCHES]
    assert [figures[f"weight_{name}"] for name in NAMES] == [0.5] * 3
    a, b, c = (each.item() for each in Step(Halves()).result().objectives.values())
    (first, *_), *_ = weighed(GLS(tasks={"both": ["a", "b"]}))
    mean = np.sqrt((a + b) * c)
    np.testing.assert_allclose(first, [mean / 2 / (a + b)] * 2 + [mean / 2 / c])
    drawn, *_ = weighed(RLW(every=2))
    assert drawn[1] == pytest.approx(drawn[0]) and sum(drawn[0]) == pytest.approx(1)
    assert Step(RLW()).balancer.never_met() is None
    assert make_balancer(None, spec_of(), CPU, ALONE, {}) is None


class Shaped(LossMethod):
    """Returns a number that is no tensor."""

    def weights(self, measured: Any, state: Any) -> Any:
        return 1.0, state


def test_weights_must_be_computed_with_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "ON_HOST", set())
    with pytest.raises(SpecError, match="Shaped.weights returned 1.0; it must return an array of shape"):
        weighed(Shaped())


@pytest.mark.parametrize(("on", "warns"), [("features", True), ("parameters", False)])
def test_labels_that_never_meet_in_a_sample_are_warned_of(on: str, warns: bool) -> None:
    step = Step(UPGrad(on=on))
    assert step.balancer.never_met() is None
    result = step.result()
    x = step.net.second(torch.randn(8, 6, dtype=torch.float64))
    result.objectives["a"], result.objectives["b"] = step.net.a(x)[:4].mean(), step.net.b(x)[4:].mean()
    step.balancer.differentiate(result, step.state)
    message = step.balancer.never_met()
    assert (message is not None) == warns
    assert not warns or 'features, and in a whole epoch those of "a" and "b" never met' in message


# ---- estimators


def estimator_of(net: Any = None, **options: Any) -> MultiEstimator:
    net = heads() if net is None else net
    return MultiEstimator(net, spec_of_heads(), TrainerSpec(".*", "sgd", {"lr": 0.01}), **options)


def test_the_check_says_what_tasks_share_and_refuses_what_shares_nothing() -> None:
    text = " ".join(str(estimator_of(balance=UPGrad()).check(loader())).split())
    assert (
        'the tasks "kind", "size"; tasks share 2 parameters and branch at 1 tensor; shared: "body.0.' in text
    )
    with pytest.raises(SpecError, match="the tasks share no parameter that is trained"):
        estimator_of(balance=UPGrad(), frozen="body.*").check(loader())


class Checkpointed(nn.Linear):
    """Computes again what its backward pass needs."""

    reentrant = True

    def forward(self, x: Tensor) -> Any:
        return checkpoint(super().forward, x.clone().requires_grad_(), use_reentrant=self.reentrant)


def test_parameters_must_be_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Heads(nn.Sequential(nn.Linear(6, 6), Checkpointed(6, 8))).double()
    estimator = estimator_of(net, balance=UPGrad())
    with pytest.raises(SpecError, match="pass use_reentrant=False"):
        estimator.check(loader())
    monkeypatch.setattr(Checkpointed, "reentrant", False)
    assert "tasks share 4 parameters" in " ".join(str(estimator.check(loader())).split())
    estimator.fit(loader(), epochs=1, event_handlers=[])


@of_both
@pytest.mark.parametrize(
    ("body", "options"), [("dense", {"accumulate": 2}), ("lazy", {}), ("dense", {"precision": "bfloat16"})]
)
def test_the_sum_trains_as_without_a_method(on: str, body: str, options: dict[str, Any]) -> None:
    one, other = (estimator_of(heads(body), balance=each, **options) for each in (None, Sum(on=on)))
    for each in (one, other):
        torch.manual_seed(1)  # lazy layers draw their parameters
        each.fit(loader(), epochs=2, event_handlers=[])
    assert_equal_parameters(one.net, other.net, 1e-3 if "precision" in options else 1e-12)
    assert one.history["train_loss"] == pytest.approx(other.history["train_loss"], rel=1e-3)


def test_handlers_change_the_objectives_that_are_compared() -> None:
    doubled = handler(
        "Doubled", change_objective=lambda estimator, objectives: [2 * each for each in objectives]
    )
    norms = [
        estimator_of(balance=Sum()).fit(loader(), epochs=1, event_handlers=some)["train_gradnorm_size"][0]
        for some in ([], [doubled])
    ]
    assert norms[1] > 1.5 * norms[0]


def test_a_net_whose_tasks_are_compared_is_not_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    with pytest.raises(SpecError, match="the net is compiled"):
        estimator_of(torch.compile(heads()), balance=UPGrad())
    estimator_of(balance=UPGrad(), compile=True)
    assert any(each.startswith("compile=True: UPGrad finds where tasks branch") for each in caplog.messages)
