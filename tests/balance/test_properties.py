"""What holds for methods whatever the gradients and losses are."""

from typing import Any

import numpy as np
import pytest

from multifit.balance import (
    DWA,
    GLS,
    IMTLG,
    MGDA,
    RLW,
    AlignedMTL,
    CAGrad,
    ConFIG,
    DualProj,
    FairGrad,
    GradNorm,
    GramianMethod,
    LossMethod,
    PCGrad,
    Uncertainty,
    UPGrad,
)  # fmt: skip
from multifit.balance.protocol import measured_losses
from multifit.balance.solvers import minimum, solved
from multifit.balance.weighing import weigh_gradients, weigh_losses
from tests.common.balance_methods import methods

# by how the sum of the weights depends on the number of tasks
SUM_1 = [MGDA(), IMTLG()]
RANDOM = ("PCGrad", "RLW")
CERTAIN = [method for name, method in methods().items() if name not in RANDOM]
GRAMIAN = [*(method for method in CERTAIN if isinstance(method, GramianMethod)), CAGrad(0)]
LOSSES = [method for method in CERTAIN if not isinstance(method, GramianMethod)]


def without(*kinds: type) -> list[Any]:
    """Return the methods of gradients but these."""
    return [method for method in GRAMIAN if not isinstance(method, kinds)]


SIZES = [(2, 3), (3, 8), (7, 5), (16, 40)]


def name(value: Any) -> str:
    return type(value).__name__ if isinstance(value, (LossMethod, GramianMethod)) else str(value)


def rows(tasks: int, size: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    random = np.random.RandomState(seed)
    return random.randn(tasks, size) * np.exp(scale * random.randn(tasks, 1))


def weights_of(method: Any, gradients: np.ndarray, losses: Any = None) -> np.ndarray:
    tasks = len(gradients)
    losses = np.ones(tasks) if losses is None else losses
    state = method.start(tasks)
    return weigh_gradients(method, losses, gradients @ gradients.T, np.ones(tasks), state)[0]


def weigh(method: Any, losses: Any, weights: Any, state: Any, epoch: int = 0) -> tuple:
    tasks = len(losses)
    measured = measured_losses(np, tasks, np.array(losses), np.full(tasks, float(epoch)))
    return weigh_losses(method, measured, weights, state)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("method", GRAMIAN, ids=name)
def test_the_order_of_tasks_does_not_matter(method: Any, size: tuple[int, int]) -> None:
    gradients = rows(*size)
    order = np.random.RandomState(1).permutation(size[0])
    vector = weights_of(method, gradients) @ gradients
    moved = weights_of(method, gradients[order]) @ gradients[order]
    np.testing.assert_allclose(moved, vector, rtol=1e-6, atol=1e-7 * np.abs(vector).max())


@pytest.mark.parametrize("scale", [1e-9, 1e7])
@pytest.mark.parametrize("method", [*without(FairGrad, GradNorm), PCGrad()], ids=name)
def test_the_scale_of_all_gradients_does_not_matter(method: Any, scale: float) -> None:
    """Those left out have weights in units of the gradients."""
    gradients = rows(4, 6)
    expected = weights_of(method, gradients)
    np.testing.assert_allclose(weights_of(method, scale * gradients), expected, rtol=1e-6)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("method", SUM_1, ids=name)
def test_weights_whose_sum_is_documented_as_1(method: Any, size: tuple[int, int]) -> None:
    assert weights_of(method, rows(*size)).sum() == pytest.approx(1)


@pytest.mark.parametrize("method", [UPGrad(), DualProj(), CAGrad(0), AlignedMTL()], ids=name)
def test_orthogonal_gradients_of_equal_length_are_averaged(method: Any) -> None:
    np.testing.assert_allclose(weights_of(method, 3 * np.eye(4)), np.full(4, 0.25), rtol=1e-9)


@pytest.mark.parametrize("method", [UPGrad(), DualProj()], ids=name)
def test_without_conflict_gradients_are_averaged(method: Any) -> None:
    np.testing.assert_allclose(weights_of(method, np.abs(rows(5, 7))), np.full(5, 0.2), rtol=1e-9)


def test_without_conflict_pcgrad_is_the_sum() -> None:
    np.testing.assert_array_equal(weights_of(PCGrad(), np.abs(rows(5, 7))), np.ones(5))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("method", [UPGrad(), DualProj(), MGDA()], ids=name)
def test_no_task_is_harmed(method: Any, size: tuple[int, int], seed: int) -> None:
    gradients = rows(*size, seed)
    vector = weights_of(method, gradients) @ gradients
    assert (gradients @ vector >= -1e-7 * np.linalg.norm(gradients, axis=1).max() ** 2).all()


@pytest.mark.parametrize("noise", [0.0, 1e-7, -1e-7, 1e-5])
@pytest.mark.parametrize("method", without(FairGrad), ids=name)
def test_gradients_that_cancel_but_for_rounding_do_not_grow(method: Any, noise: float) -> None:
    """FairGrad's equation asks for weights as large as that; they are finite, see below."""
    gramian = np.array([[1, -1 - noise, 0], [-1 - noise, 1, 0], [0, 0, 1]])  # of float32: may have no root
    weights = weigh_gradients(method, np.ones(3), gramian, np.ones(3), method.start(3))[0]
    assert np.abs(weights).max() < 1e5


@pytest.mark.parametrize("size", [2, 30, 10_000])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("method", without(FairGrad), ids=name)
def test_rounding_does_not_make_gradients_independent(method: Any, size: int, seed: int) -> None:
    """The third task's loss is the sum of two others, or there are more tasks than numbers."""
    gradients = rows(3, size, seed, 0.5).astype(np.float32)
    gradients[2] = gradients[0] + gradients[1]
    ones, exact = np.ones(3), gradients.astype(float)
    rounded = (gradients @ gradients.T).astype(float)
    expected = weights_of(method, exact) @ exact
    found = weigh_gradients(method, ones, rounded, ones, method.start(3))[0] @ exact
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.linalg.norm(expected))


def test_mgda_is_shorter_than_any_mean() -> None:
    gradients, random = rows(6, 9), np.random.RandomState(2)
    shortest = np.linalg.norm(weights_of(MGDA(), gradients) @ gradients)
    means = random.dirichlet(np.full(6, 0.3), 500) @ gradients
    assert shortest <= np.linalg.norm(means, axis=1).min()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("size", "scale"), [(12, 0.0), (12, 8.0), (7, 3.0)])
def test_fairgrad_solves_its_equation(alpha: float, size: int, scale: float) -> None:
    gradients = rows(4, size, scale=scale)
    weights = weights_of(FairGrad(alpha), gradients)
    np.testing.assert_allclose(gradients @ (gradients.T @ weights), weights ** (-1 / alpha), rtol=1e-7)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_fairgrad_stays_finite_where_gradients_are_opposite(alpha: float) -> None:
    gradients = rows(4, 2, seed=6)
    weights = weights_of(FairGrad(alpha), gradients)
    assert np.isfinite(weights).all() and (weights > 0).all()
    lengths = weights * np.linalg.norm(gradients, axis=1)
    assert np.linalg.norm(weights @ gradients) <= 1e-4 * lengths.sum()


@pytest.mark.parametrize("method", [IMTLG(), ConFIG()], ids=name)
def test_projections_on_all_gradients_are_equal(method: Any) -> None:
    gradients = rows(4, 12)
    vector = weights_of(method, gradients) @ gradients
    projections = gradients @ vector / np.linalg.norm(gradients, axis=1)
    np.testing.assert_allclose(projections, np.full(4, projections[0]), rtol=1e-9)


def test_imtlg_is_the_mean_where_there_are_no_equal_projections() -> None:
    np.testing.assert_array_equal(weights_of(IMTLG(), np.array([[1.0, 0.0], [-1.0, 0.0]])), [0.5, 0.5])


@pytest.mark.parametrize("method", [UPGrad(normalize=True), MGDA(normalize=True)], ids=name)
def test_normalized_gradients(method: Any) -> None:
    """The combined gradient is that of the gradients scaled to a length of 1."""
    gradients = rows(4, 6, scale=3)
    units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
    plain = type(method)()
    np.testing.assert_allclose(
        weights_of(method, gradients) @ gradients, weights_of(plain, units) @ units, atol=1e-9
    )


def test_gradnorm_takes_no_step_for_rounding() -> None:
    """Gradients of one length are where it wants them: their last digits do not say which one is longer."""
    state = GradNorm().start(3)
    for squares in ([1, 1 + 1e-15, 1 - 1e-15], [4, 4 - 4e-15, 4]):
        after = weigh_gradients(GradNorm(), np.ones(3), np.diag(squares), np.ones(3), state)[1]
        np.testing.assert_array_equal(after["weights"], np.ones(3))
    after = weigh_gradients(GradNorm(), np.ones(3), np.diag([1, 1 + 1e-6, 1]), np.ones(3), state)[1]
    assert after["weights"][1] < 1 < after["weights"][0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["losses", "gramian", "zero"])
def test_what_is_not_finite_changes_nothing(bad: float, where: str) -> None:
    method, gradients, losses, weights = GradNorm(), rows(3, 4), np.ones(3), np.arange(3.0)
    gramian, state = gradients @ gradients.T, GradNorm().start(3)
    if where == "losses":
        losses[1] = bad
    elif where == "gramian":
        gramian[0, 2] = bad
    else:  # no task has a gradient
        gramian[:] = 0
    after, now = weigh_gradients(method, losses, gramian, weights, state)
    assert after is weights
    assert now is state


@pytest.mark.parametrize("method", LOSSES, ids=name)
def test_a_loss_that_is_not_finite_changes_nothing(method: LossMethod) -> None:
    weights, state = weigh(method, [2.0, 3.0], np.ones(2), method.start(2))
    for bad in (np.nan, np.inf):
        same, now = weigh(method, [2.0, bad], weights, state)
        np.testing.assert_array_equal(same, weights)
        assert {key: np.asarray(value).tolist() for key, value in now.items()} == {
            key: np.asarray(value).tolist() for key, value in state.items()
        }


@pytest.mark.parametrize("method", LOSSES, ids=name)
def test_an_absent_task_is_out_of_the_batch(method: Any) -> None:
    """Its weight is 0, what is remembered of it stays, and the others are weighed as if it did not exist."""
    losses, state, fewer = np.array([2.0, 0.0, 3.0]), method.start(3), method.start(2)
    weights, pair = np.ones(3), np.ones(2)
    for _ in range(3):
        weights, new = weigh(method, losses, weights, state)
        pair, fewer = weigh(method, losses[[0, 2]], pair, fewer)
        assert weights[1] == 0
        arrays = {key: value for key, value in new.items() if isinstance(value, np.ndarray)}
        for key, value in arrays.items():
            assert key in ("epoch", "done") or value[1] == state[key][1]
        np.testing.assert_allclose(weights[[0, 2]], pair)
        state = new


def test_without_any_task_the_weights_stay() -> None:
    for method in LOSSES:
        weights, _ = weigh(method, [0.0, 0.0], np.array([0.3, 0.7]), method.start(2))
        np.testing.assert_array_equal(weights, [0.3, 0.7])


def test_a_task_that_no_epoch_measured_keeps_its_mean_in_dwa() -> None:
    method = DWA()
    weights, state = np.ones(2), method.start(2)
    for epoch, losses in enumerate([[4.0, 2.0], [2.0, 0.0], [1.0, 2.0]]):
        weights, state = weigh(method, losses, weights, state, epoch)
    ratios = np.exp(np.array([0.5, 1.0]) / 2)
    np.testing.assert_allclose(weights, 2 * ratios / ratios.sum())


def test_weights_that_are_drawn_depend_on_seed_and_step() -> None:
    def draw(seed: int, step: int) -> list:
        return RLW(seed).weights(measured_losses(np, 3, np.ones(3), np.zeros(3), step), {})[0].tolist()

    assert draw(0, 5) == draw(0, 5) != draw(0, 6) != draw(1, 6)
    gradients = rows(6, 3, seed=5, scale=0)
    orders = {tuple(PCGrad(seed).solve(gradients @ gradients.T, 3).round(9)) for seed in (0, 0, 1, 2)}
    assert len(orders) == 3


def test_every_method_but_the_bases_says_what_its_weights_add_up_to() -> None:
    for method in methods().values():
        text = " ".join((type(method).__doc__ or "").split()).lower()
        assert "sum" in text and "References" in (type(method).__doc__ or ""), type(method).__name__


OPTIONS = [
    (UPGrad, {"every": 0}, "UPGrad: every is 0; valid is a whole number of at least 1"),
    (
        UPGrad,
        {"on": ""},
        """UPGrad: on is ''; valid is "features", "parameters" or a pattern of parameters""",
    ),
    (MGDA, {"normalize": 1}, "MGDA: normalize is 1; valid is True or False"),
    (GLS, {"tasks": {}}, "GLS: tasks is {}; valid is a dict of lists of losses"),
    (Uncertainty, {"optimizer": "adm"}, """Uncertainty: optimizer is 'adm' (did you mean "adam"?)"""),
    (FairGrad, {"alpha": 0}, "FairGrad: alpha is 0; valid is a finite number above 0"),
    (PCGrad, {"seed": -1}, "PCGrad: seed is -1"),
]


@pytest.mark.parametrize(
    ("kind", "options", "message"), OPTIONS, ids=lambda value: getattr(value, "__name__", "")
)
def test_options_are_checked(kind: Any, options: dict, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        kind(**options)
    assert message in str(raised.value)


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(TypeError) as raised:
        GradNorm(alfa=1, evry=2)
    assert str(raised.value) == (
        'GradNorm has no argument "alfa" (did you mean "alpha"?), "evry" (did you mean "every"?); '
        'valid are "alpha", "learning_rate", "on", "normalize", "every", "tasks"'
    )
    with pytest.raises(TypeError, match=r'^RLW has no argument "on"; valid are "seed", "every", "tasks"$'):
        RLW(on="features")


def test_the_base_has_no_solution() -> None:
    with pytest.raises(NotImplementedError):
        GramianMethod().solve(np.eye(2))


class Counting(GramianMethod):
    """A user's own method, with a number among what it remembers."""

    def start(self, tasks: int) -> dict:
        return {"batches": 0}

    def weights(self, measured: Any, state: dict) -> tuple:
        return np.full(measured.tasks, 2.0), {"batches": state["batches"] + 1}


def test_a_method_may_remember_numbers() -> None:
    weights, state = weigh_gradients(Counting(), np.ones(2), np.diag([1.0, 0.0]), np.ones(2), {"batches": 4})
    assert (weights.tolist(), state) == ([2.0, 0.0], {"batches": 5})


def test_a_singular_system_gets_its_shortest_solution() -> None:
    np.testing.assert_allclose(solved(np.ones((2, 2)), np.ones(2)), [0.5, 0.5])


@pytest.mark.parametrize("total", [None, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(20))
def test_minimum_meets_the_conditions_of_a_minimum(total: Any, seed: int) -> None:
    random = np.random.RandomState(seed)
    count = random.randint(1, 9)
    factor = random.randn(count, count + (total is None))
    Q, b = factor @ factor.T, random.randn(count)
    w = minimum(Q, b, total)
    slope = Q @ w + b
    level = 0.0 if total is None else slope[w > 0].mean()
    assert (w >= 0).all()
    np.testing.assert_allclose(slope[w > 0], level, atol=1e-8)
    assert (slope >= level - 1e-8).all()
    if total is not None:
        assert w.sum() == pytest.approx(total)


@pytest.mark.parametrize("seed", range(8))
def test_the_minimum_for_two_variables(seed: int) -> None:
    """No slope leads down from it, and none along a variable that is above its bound."""
    random = np.random.RandomState(seed)
    rows, b = random.randn(2, 3), random.randn(2) - seed % 4 / 2
    Q = rows @ rows.T
    w = minimum(Q, b)
    slope = Q @ w + b
    assert (w >= 0).all() and (slope >= -1e-12).all() and abs(w @ slope) < 1e-12
