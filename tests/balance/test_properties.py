"""What holds for methods whatever the gradients and losses are."""

from typing import Any

import numpy as np
import pytest

from multifit.balance import (
    DWA,
    FAMO,
    GLS,
    IMTLG,
    MGDA,
    RLW,
    STCH,
    AlignedMTL,
    CAGrad,
    ConFIG,
    DualProj,
    FairGrad,
    GradNorm,
    GramianMethod,
    LossMethod,
    NashMTL,
    PCGrad,
    Sum,
    Uncertainty,
    UPGrad,
)  # fmt: skip
from multifit.balance.protocol import measured_losses, weigh_gradients, weigh_losses
from multifit.balance.solvers import minimum, solved
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


@pytest.mark.parametrize("cosine", [-1.0, -1 + 1e-6])
def test_config_is_the_mean_of_opposite_gradients(cosine: float) -> None:
    gramian = np.array([[1.0, 2 * cosine], [2 * cosine, 4.0]])
    assert ConFIG().solve(gramian) == pytest.approx([0.5, 0.5])


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
    """Its weight is 0, what is remembered of it stays, and the others are weighed as if it did not exist.

    Averages give them two of three shares.
    """
    losses, state, fewer = np.array([2.0, 0.0, 3.0]), method.start(3), method.start(2)
    weights, pair = np.ones(3), np.ones(2)
    for _ in range(3):
        weights, new = weigh(method, losses, weights, state)
        pair, fewer = weigh(method, losses[[0, 2]], pair, fewer)
        assert weights[1] == 0
        arrays = {key: value for key, value in new.items() if isinstance(value, np.ndarray)}
        for key, value in arrays.items():
            assert key in ("epoch", "done") or value[1] == state[key][1]
        share = 2 / 3 if method.averages else 1.0
        np.testing.assert_allclose(weights[[0, 2]], share * pair)
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
    (MGDA, {"normalize": 1}, 'MGDA: normalize is 1; valid is True or False, "largest" or "mean"'),
    (MGDA, {"normalize": "larges"}, """normalize is 'larges' (did you mean "largest"?)"""),
    (Sum, {"smooth": 1}, "Sum: smooth is 1; valid is a finite number of at least 0 and below 1"),
    (
        Sum,
        {"preference": {"a": 0}},
        "Sum: preference is {'a': 0}; valid is a dict of numbers above 0 by task",
    ),
    (Sum, {"preference": {"a": "2"}}, 'such as {"detection": 2} or None'),
    (Sum, {"preference": {}}, "Sum: preference is {}"),
    (STCH, {"warmup": 0}, "STCH: warmup is 0"),
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
        'valid are "alpha", "learning_rate", "on", "normalize", "every", "tasks", "preference", "smooth"'
    )
    with pytest.raises(TypeError, match='^NashMTL has no argument "alpha"; valid are "on", "normalize", '):
        NashMTL(alpha=2)
    with pytest.raises(
        TypeError, match='^GLS has no argument "preference"; methods of gradients, such as UPGrad'
    ):
        GLS(preference={"a": 2})
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


# ---- how much a task counts --------------------------------------------------------------------------------


def preferred(method: Any, gradients: np.ndarray, preference: Any, there: Any = None) -> np.ndarray:
    """Return the weights with a preference, whose mean need not be 1; `there` is 0 for absent tasks."""
    tasks = len(gradients)
    gradients = gradients if there is None else gradients * np.array(there)[:, np.newaxis]
    preference = tasks * np.array(preference) / np.sum(preference)
    state, ones = method.start(tasks), np.ones(tasks)
    return weigh_gradients(method, ones, gradients @ gradients.T, ones, state, preference=preference)[0]


ALL = [*GRAMIAN, PCGrad()]
IMMEDIATE = [method for method in ALL if not isinstance(method, GradNorm)]


@pytest.mark.parametrize("normalize", [False, True, "largest", "mean"])
@pytest.mark.parametrize("method", ALL, ids=name)
def test_equal_preferences_are_none(method: Any, normalize: Any) -> None:
    gradients, kind = rows(4, 6), type(method)
    scaled = kind(normalize=normalize)
    expected = weights_of(scaled, gradients)
    np.testing.assert_allclose(preferred(scaled, gradients, [3, 3, 3, 3]), expected, rtol=1e-9)


@pytest.mark.parametrize("method", IMMEDIATE, ids=name)
def test_a_preference_does_not_depend_on_the_scale_of_a_normalised_loss(method: Any) -> None:
    gradients, scale = rows(4, 6), np.array([1.0, 1e4, 1e-3, 7.0])
    scaled = type(method)(normalize=True)
    expected = preferred(scaled, gradients, [2, 1, 1, 0.5])
    found = preferred(scaled, gradients * scale[:, np.newaxis], [2, 1, 1, 0.5]) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


RATIOS = {"FairGrad": 2 ** (1 / 3), "NashMTL": 2**0.5}


@pytest.mark.parametrize("method", [each for each in IMMEDIATE if not getattr(each, "c", 0)], ids=name)
def test_twice_as_important_is_twice_the_weight_of_orthogonal_gradients(method: Any) -> None:
    """In FairGrad, it is as if there were two such tasks."""
    weights = preferred(method, np.eye(3), [2, 1, 1])
    assert weights[0] / weights[1] == pytest.approx(RATIOS.get(name(method), 2.0))
    assert weights[1] == pytest.approx(weights[2])


@pytest.mark.parametrize("method", [IMTLG(), ConFIG(), MGDA()], ids=name)
def test_projections_are_proportional_to_the_preference(method: Any) -> None:
    """MGDA equals decreases, and leaves tasks out whose losses fall faster."""
    gradients, preference = rows(4, 12, scale=0.1), np.array([3.0, 1.0, 2.0, 0.5])
    weights = preferred(method, gradients, preference)
    shares = gradients @ (weights @ gradients) / preference
    if not isinstance(method, MGDA):
        shares /= np.linalg.norm(gradients, axis=1)
    assert (weights > 0).sum() >= 3
    np.testing.assert_allclose(shares[weights > 0], shares.min(), rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_fairgrad_with_a_preference_solves_its_equation(alpha: float) -> None:
    gradients, preference = rows(4, 12), np.array([2.0, 1.0, 0.5, 0.5])
    weights = preferred(NashMTL() if alpha == 1 else FairGrad(alpha), gradients, preference)
    expected = (weights / preference) ** (-1 / alpha)
    np.testing.assert_allclose(gradients @ (gradients.T @ weights), expected, rtol=1e-7)


def test_pcgrad_weighs_the_gradients_from_which_conflicts_were_removed() -> None:
    one, other = gradients = np.array([[1.0, 0.2], [-1.0, 1.0]])
    inner = one @ other
    projected = [one - inner / (other @ other) * other, other - inner / (one @ one) * one]
    expected = (3 * projected[0] + projected[1]) / 2
    np.testing.assert_allclose(preferred(PCGrad(), gradients, [3, 1]) @ gradients, expected)


def test_a_preference_is_kept_by_cagrad_near_its_mean() -> None:
    """It is c from the weighted mean, and its smallest decrease of a loss is larger than the mean's."""
    gradients, preference = rows(3, 6), np.array([2.0, 0.5, 0.5])
    mean = preference @ gradients / 3
    vector = preferred(CAGrad(0.3), gradients, preference) @ gradients
    assert np.linalg.norm(vector - mean) == pytest.approx(0.3 * np.linalg.norm(mean))
    assert (gradients @ vector).min() > (gradients @ mean).min()


def test_gradnorm_comes_to_lengths_in_proportion_to_the_preference() -> None:
    """All losses have their first values. Where a task is absent, the sum of the others' weights stays."""
    method, state, ones = GradNorm(learning_rate=0.002), GradNorm().start(3), np.ones(3)
    gramian, preference = np.diag([1.0, 4.0, 9.0]), np.array([1.5, 1.0, 0.5])
    for step in range(2000):
        there = np.array([step % 5 != 0, 1.0, 1.0])
        given = gramian * np.outer(there, there)
        _, state = weigh_gradients(method, ones, given, ones, state, preference=preference)
        assert state["weights"].sum() == pytest.approx(3)
    lengths = state["weights"] * [1, 2, 3]
    np.testing.assert_allclose(lengths / lengths.sum(), preference / 3, rtol=0.05)


class Inverse(GramianMethod):
    """A user's own method, for equally long gradients."""

    def solve(self, gramian: Any, step: int = 0) -> Any:
        return (1 / np.sqrt(np.diag(gramian))).tolist()


class Powers(GramianMethod):
    """A user's own method that uses the preference itself."""

    def solve(self, gramian: Any, step: int = 0, preference: Any = 1.0) -> Any:
        return np.ones(len(gramian)) * preference**2


def test_preferences_of_methods_of_your_own() -> None:
    gradients = np.diag([1.0, 2.0, 4.0])
    np.testing.assert_allclose(preferred(Inverse(), gradients, [2, 1, 1]), [1.5, 0.375, 0.1875])
    np.testing.assert_allclose(preferred(Powers(), gradients, [2, 1, 1]), [2.25, 0.5625, 0.5625])
    assert weights_of(Inverse(), gradients).tolist() == [1.0, 0.5, 0.25]


# ---- batches in which tasks are absent ---------------------------------------------------------------------


@pytest.mark.parametrize("preference", [None, [2.0, 1.0, 1.0]], ids=["equal", "preferred"])
@pytest.mark.parametrize("method", [*ALL, Inverse()], ids=name)
def test_the_share_of_the_tasks_is_kept(method: Any, preference: Any) -> None:
    """Averages get K'/K of what they give K' tasks; the others exactly that. GradNorm has no weights yet."""
    gradients, given = rows(3, 8), np.ones(3) if preference is None else np.array(preference)
    for there in ([1, 1, 1], [1, 0, 1], [0, 1, 0]):
        kept = np.array(there) == 1
        share = kept.mean() if getattr(method, "averages", False) else 1.0
        # of the tasks alone, with the preferences that are scaled to a mean of 1 over all of them
        alone = gradients[kept] @ gradients[kept].T, np.ones(kept.sum())
        expected = weigh_gradients(
            method, alone[1], *alone, method.start(kept.sum()), preference=3 * given[kept] / given.sum()
        )[0]
        weights = preferred(method, gradients, given, there)
        np.testing.assert_allclose(weights[kept], share * expected, rtol=1e-9)
        assert not weights[~kept].any()


@pytest.mark.parametrize("method", [UPGrad(), DualProj(), AlignedMTL(), MGDA(), IMTLG()], ids=name)
def test_a_weight_does_not_jump_where_tasks_are_absent(method: Any) -> None:
    for there in ([1, 1, 1], [1, 0, 1], [0, 0, 1]):
        weights = preferred(method, 2 * np.eye(3), np.ones(3), there)
        np.testing.assert_allclose(weights, np.array(there) / 3, rtol=1e-9)
    gramian, ones = np.diag([1.0, 1.0, 0.0]), np.ones(3)  # the third has a declared weight of 0
    weights, _ = weigh_gradients(method, ones, gramian, ones, {}, weighed=2)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0], rtol=1e-9)


@pytest.mark.parametrize("kind", [GLS, FAMO])
def test_a_weight_of_a_loss_does_not_jump_where_tasks_are_absent(kind: Any) -> None:
    method = kind()
    for losses in ([2.0, 2.0, 2.0], [2.0, 0.0, 2.0], [0.0, 0.0, 2.0]):
        weights, _ = weigh(method, losses, np.ones(3), method.start(3))
        np.testing.assert_allclose(weights, np.array(losses) / 2 / 3)
    measured = measured_losses(np, 3, np.array([2.0, 2.0, 0.0]), np.zeros(3))
    weights, _ = weigh_losses(method, measured, np.ones(3), method.start(3), weighed=2)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0])


# ---- lengths, and averages over batches --------------------------------------------------------------------


@pytest.mark.parametrize(("normalize", "length"), [(True, 1.0), ("largest", 4.0), ("mean", 3.0)])
def test_gradients_are_scaled_to_one_length(normalize: Any, length: float) -> None:
    """Of the tasks that are present: here, the second is not."""
    gradients = np.diag([2.0, 0.0, 4.0])
    lengths = weights_of(Sum(normalize=normalize), gradients) * np.diag(gradients)
    np.testing.assert_allclose(lengths, [length, 0, length])


def test_a_method_sees_the_scaled_gradients() -> None:
    gradients = rows(3, 5)
    largest = np.linalg.norm(gradients, axis=1, keepdims=True)
    scaled = gradients / largest * largest.max()
    expected = weights_of(UPGrad(), scaled) @ scaled
    np.testing.assert_allclose(weights_of(UPGrad(normalize="largest"), gradients) @ gradients, expected)


@pytest.mark.parametrize("normalize", [False, "largest"])
@pytest.mark.parametrize("kind", [DualProj, Inverse, IMTLG, GradNorm], ids=lambda kind: kind.__name__)
def test_smooth_weights_are_the_average_by_hand(kind: Any, normalize: Any) -> None:
    """That of a task stays where the task is absent, and all stay where a number is not finite."""
    method, plain, ones = kind(smooth=0.8, normalize=normalize), kind(normalize=normalize), np.ones(3)
    state, other, average = method.start(3), plain.start(3), np.full(3, np.nan)
    presence = [[1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]]
    for seed, there in enumerate(presence):
        gradients = rows(3, 5, seed) * np.array(there)[:, np.newaxis]
        gramian = gradients @ gradients.T
        lengths = np.linalg.norm(gradients, axis=1)
        scale = np.where(lengths > 0, lengths / lengths.max(), 1) if normalize else ones
        raw, other = weigh_gradients(plain, ones, gramian, ones, other)
        now = 0.8 * average + 0.2 * raw * scale
        average = np.where(there, np.where(np.isnan(average), raw * scale, now), average)
        weights, state = weigh_gradients(method, ones, gramian, ones, state)
        np.testing.assert_allclose(weights, np.where(there, average / scale, 0), rtol=1e-9)
        _, same = weigh_gradients(method, ones, np.full((3, 3), np.nan), ones, state)
        assert same is state


# ---- smooth Tchebycheff ------------------------------------------------------------------------------------

REFERENCE = np.array([2.0, 0.5, 30.0])


def stch(mu: float, losses: Any) -> np.ndarray:
    method = STCH(mu)
    _, state = weigh(method, REFERENCE, np.ones(3), method.start(3))
    return weigh(method, losses, np.ones(3), state, epoch=1)[0]


def smooth_maximum(mu: float, losses: np.ndarray) -> float:
    return float(3 * mu * np.log(np.sum((losses / REFERENCE) ** (1 / mu))))


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_stch_is_the_derivative_of_a_smooth_maximum(mu: float) -> None:
    losses = np.array([1.5, 0.45, 33.0])
    moved = np.eye(3) * losses * 1e-6
    slopes = [
        (smooth_maximum(mu, losses + each) - smooth_maximum(mu, losses - each)) / (2 * each.sum())
        for each in moved
    ]
    np.testing.assert_allclose(stch(mu, losses), slopes, rtol=1e-6)
    assert (stch(mu, losses) * losses).sum() == pytest.approx(3)


def test_with_a_small_mu_stch_minimises_the_largest_relative_loss() -> None:
    np.testing.assert_allclose(stch(1e-4, [1.5, 0.45, 20.0]), [0, 3 / 0.45, 0], atol=1e-12)
    np.testing.assert_allclose(stch(1e6, [1.5, 0.45, 20.0]), 1 / np.array([1.5, 0.45, 20.0]), rtol=1e-5)


def test_what_multiplies_a_loss_has_no_effect_on_what_stch_minimises() -> None:
    scale, weighed = np.array([1e-3, 5.0, 1e4]), []
    for factor in (np.ones(3), scale):
        method, state = STCH(), STCH().start(3)
        for epoch, losses in enumerate([REFERENCE, REFERENCE * [0.5, 0.9, 0.7]]):
            weights, state = weigh(method, factor * losses, np.ones(3), state, epoch)
        weighed.append(weights * factor)
    np.testing.assert_allclose(*weighed)


def test_the_reference_of_stch_is_a_mean_over_the_last_epoch_of_the_warm_up() -> None:
    """A task that was absent from it has its first loss after it."""
    method, state = STCH(warmup=2), STCH().start(3)
    epochs = [[[9, 9, 9]], [[1, 8, 0], [3, 2, 0]], [[4, 1, 0], [5, 5, 7], [1, 1, 9]]]
    for epoch, batches in enumerate(epochs):
        for losses in batches:
            weights, state = weigh(method, np.array(losses, float), np.ones(3), state, epoch)
            if epoch < 2:
                np.testing.assert_allclose(weights, [1 / loss if loss else 0 for loss in losses])
    assert (state["sums"] / state["counts"]).tolist() == [2.0, 5.0, 7.0]
    relative = np.array([1 / 2, 1 / 5, 9 / 7])
    np.testing.assert_allclose(weights, 3 * relative / relative.sum() / [1, 1, 9])
