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
from tests.common.balance_methods import methods

CERTAIN = [method for name, method in methods().items() if name not in ("PCGrad", "RLW")]  # draw no numbers
GRAMIAN = [*(method for method in CERTAIN if isinstance(method, GramianMethod)), CAGrad(0)]
LOSSES = [method for method in CERTAIN if not isinstance(method, GramianMethod)]
ALL = [*GRAMIAN, PCGrad()]
SIZES = [(2, 3), (3, 8), (7, 5), (16, 40)]


def of_each(some: list[Any]) -> Any:
    return pytest.mark.parametrize("method", some, ids=lambda method: type(method).__name__)


def without(*kinds: type) -> list[Any]:
    """Return the methods of gradients but these."""
    return [method for method in GRAMIAN if not isinstance(method, kinds)]


def rows(tasks: int, size: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    random = np.random.RandomState(seed)
    return random.randn(tasks, size) * np.exp(scale * random.randn(tasks, 1))


def weights_of(method: Any, gradients: np.ndarray, preference: Any = None, there: Any = None) -> np.ndarray:
    """Return the first weights; the mean of a preference need not be 1, and `there` is 0 for absent tasks."""
    tasks = len(gradients)
    gradients = gradients if there is None else gradients * np.array(there)[:, np.newaxis]
    if preference is not None:
        preference = tasks * np.array(preference) / np.sum(preference)
    state, ones = method.start(tasks), np.ones(tasks)
    return weigh_gradients(method, ones, gradients @ gradients.T, ones, state, preference=preference)[0]


def weigh(method: Any, losses: Any, weights: Any, state: Any, epoch: int = 0) -> tuple:
    tasks = len(losses)
    measured = measured_losses(np, tasks, np.array(losses), np.full(tasks, float(epoch)))
    return weigh_losses(method, measured, weights, state)


# ---- gradients ---------------------------------------------------------------------------------------------


@of_each(ALL)
def test_neither_the_order_of_tasks_nor_a_common_scale_matters(method: Any) -> None:
    """PCGrad draws an order of its own; FairGrad and GradNorm have weights in units of the gradients."""
    for size in () if isinstance(method, PCGrad) else SIZES:
        gradients = rows(*size)
        order = np.random.RandomState(1).permutation(size[0])
        vector = weights_of(method, gradients) @ gradients
        moved = weights_of(method, gradients[order]) @ gradients[order]
        np.testing.assert_allclose(moved, vector, rtol=1e-6, atol=1e-7 * np.abs(vector).max())
    for scale in () if isinstance(method, (FairGrad, GradNorm)) else (1e-9, 1e7):
        found = weights_of(method, scale * rows(4, 6))
        np.testing.assert_allclose(found, weights_of(method, rows(4, 6)), rtol=1e-6)


OPPOSITE = np.array([[1.0, 0.0], [-1.0, 0.0]])
KNOWN: dict[str, tuple[list[Any], np.ndarray, float]] = {
    "orthogonal": ([UPGrad(), DualProj(), CAGrad(0), AlignedMTL(), MGDA(), IMTLG()], 3 * np.eye(4), 0.25),
    "no conflict": ([UPGrad(), DualProj()], np.abs(rows(5, 7)), 0.2),
    "no conflict, summed": ([PCGrad()], np.abs(rows(5, 7)), 1.0),
    "opposite": ([IMTLG(), CAGrad()], OPPOSITE, 0.5),
    "opposite, of two lengths": ([ConFIG()], OPPOSITE * [[1], [2]], 0.5),
    "nearly opposite": ([ConFIG()], np.array([[1.0, 0.0], [1e-6 - 1, 2e-6**0.5]]), 0.5),
}


@pytest.mark.parametrize("case", KNOWN)
def test_weights_that_are_known(case: str) -> None:
    """Averages where nothing conflicts, and where a method has no direction."""
    for method in KNOWN[case][0]:
        _, gradients, weight = KNOWN[case]
        np.testing.assert_allclose(weights_of(method, gradients), np.full(len(gradients), weight), rtol=1e-9)


@of_each([UPGrad(), DualProj(), MGDA(), IMTLG()])
def test_what_the_documentation_says_of_weights(method: Any) -> None:
    """No task is harmed, or all benefit alike; means have a sum of 1."""
    for size in SIZES:
        gradients = rows(*size)
        weights = weights_of(method, gradients)
        decreases = gradients @ (weights @ gradients)
        if not isinstance(method, IMTLG):
            assert (decreases >= -1e-7 * np.linalg.norm(gradients, axis=1).max() ** 2).all()
        if isinstance(method, (MGDA, IMTLG)):
            assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("noise", [0.0, 1e-7, -1e-7, 1e-5])
@of_each(without(FairGrad))
def test_gradients_that_cancel_but_for_rounding_do_not_grow(method: Any, noise: float) -> None:
    """FairGrad's equation asks for weights as large as that; they are finite, see below."""
    gramian = np.array([[1, -1 - noise, 0], [-1 - noise, 1, 0], [0, 0, 1]])  # of float32: may have no root
    weights = weigh_gradients(method, np.ones(3), gramian, np.ones(3), method.start(3))[0]
    assert np.abs(weights).max() < 1e5


@pytest.mark.parametrize("size", [2, 30, 10_000])
@of_each(without(FairGrad))
def test_rounding_does_not_make_gradients_independent(method: Any, size: int) -> None:
    """The third task's loss is the sum of two others, or there are more tasks than numbers."""
    for seed in range(2):
        gradients = rows(3, size, seed, 0.5).astype(np.float32)
        gradients[2] = gradients[0] + gradients[1]
        ones, exact = np.ones(3), gradients.astype(float)
        rounded = (gradients @ gradients.T).astype(float)
        expected = weights_of(method, exact) @ exact
        found = weigh_gradients(method, ones, rounded, ones, method.start(3))[0] @ exact
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.linalg.norm(expected))


@pytest.mark.parametrize(
    "preference", [np.ones(4), np.array([2.0, 1.0, 0.5, 0.5])], ids=["equal", "preferred"]
)
@pytest.mark.parametrize("method", [FairGrad(0.5), FairGrad(3), NashMTL()], ids=["0.5", "3", "NashMTL"])
def test_fairgrad_solves_its_equation(method: Any, preference: np.ndarray) -> None:
    for size, scale in ((12, 0.0), (12, 8.0), (7, 3.0)):
        gradients = rows(4, size, scale=scale)
        weights = weights_of(method, gradients, preference)
        expected = (weights / np.array(preference)) ** (-1 / method.alpha)
        np.testing.assert_allclose(gradients @ (gradients.T @ weights), expected, rtol=1e-7)


@of_each([FairGrad(0.5), NashMTL()])
def test_fairgrad_stays_finite_where_gradients_are_opposite(method: Any) -> None:
    gradients = rows(4, 2, seed=6)
    weights = weights_of(method, gradients)
    assert np.isfinite(weights).all() and (weights > 0).all()
    lengths = weights * np.linalg.norm(gradients, axis=1)
    assert np.linalg.norm(weights @ gradients) <= 1e-4 * lengths.sum()


def test_gradnorm_takes_no_step_for_rounding() -> None:
    """Gradients of one length are where it wants them: their last digits do not say which one is longer."""
    state = GradNorm().start(3)
    for squares in ([1, 1 + 1e-15, 1 - 1e-15], [4, 4 - 4e-15, 4]):
        after = weigh_gradients(GradNorm(), np.ones(3), np.diag(squares), np.ones(3), state)[1]
        np.testing.assert_array_equal(after["weights"], np.ones(3))
    after = weigh_gradients(GradNorm(), np.ones(3), np.diag([1, 1 + 1e-6, 1]), np.ones(3), state)[1]
    assert after["weights"][1] < 1 < after["weights"][0]


def test_weights_that_are_drawn_depend_on_seed_and_step() -> None:
    def draw(seed: int, step: int) -> list:
        return RLW(seed).weights(measured_losses(np, 3, np.ones(3), np.zeros(3), step), {})[0].tolist()

    assert draw(0, 5) == draw(0, 5) != draw(0, 6) != draw(1, 6)
    gradients = rows(6, 3, seed=5, scale=0)
    orders = {tuple(PCGrad(seed).solve(gradients @ gradients.T, 3).round(9)) for seed in (0, 0, 1, 2)}
    assert len(orders) == 3


def scaled(gradients: np.ndarray, normalize: Any) -> np.ndarray:
    """Return gradients of one length, where they are not 0."""
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    there = lengths[lengths > 0]
    length = {"largest": there.max(), "mean": there.mean()}.get(normalize, 1.0)
    return gradients / np.where(lengths > 0, lengths / length, 1.0)


@pytest.mark.parametrize("normalize", [True, "largest", "mean"])
@pytest.mark.parametrize("kind", [Sum, UPGrad, MGDA])
def test_gradients_are_scaled_to_one_length(kind: Any, normalize: Any) -> None:
    """Of the tasks that are present: here, the second is not."""
    gradients = rows(4, 6, scale=3) * np.array([[1], [0], [1], [1]])
    others = scaled(gradients, normalize)
    expected = weights_of(kind(), others) @ others
    found = weights_of(kind(normalize=normalize), gradients) @ gradients
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


# ---- options -----------------------------------------------------------------------------------------------


def test_every_method_but_the_bases_says_what_its_weights_add_up_to() -> None:
    for method in methods().values():
        text = " ".join((type(method).__doc__ or "").split()).lower()
        assert "sum" in text and "references" in text, type(method).__name__


NO_ALPHA = 'GradNorm has no argument "alfa" (did you mean "alpha"?), "evry" (did you mean "every"?); '
OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (UPGrad, {"every": 0}, "UPGrad: every is 0; valid is a whole number of at least 1"),
    (UPGrad, {"on": ""}, """UPGrad: on is ''; valid is "features", "parameters" or a pattern of"""),
    (MGDA, {"normalize": 1}, 'MGDA: normalize is 1; valid is True or False, "largest" or "mean"'),
    (Sum, {"smooth": 1}, "Sum: smooth is 1; valid is a finite number of at least 0 and below 1"),
    (Sum, {"preference": {"a": 0}}, "Sum: preference is {'a': 0}; valid is a dict of numbers above 0 by"),
    (Sum, {"preference": {}}, "Sum: preference is {}"),
    (GLS, {"tasks": {}}, "GLS: tasks is {}; valid is a dict of lists of losses"),
    (Uncertainty, {"optimizer": "adm"}, """Uncertainty: optimizer is 'adm' (did you mean "adam"?)"""),
    (FairGrad, {"alpha": 0}, "FairGrad: alpha is 0; valid is a finite number above 0"),
    (PCGrad, {"seed": -1}, "PCGrad: seed is -1"),
    (
        GradNorm, {"alfa": 1, "evry": 2},
        f'{NO_ALPHA}valid are "alpha", "learning_rate", "on", "normalize", "every", "tasks", "preference", ',
    ),
    (NashMTL, {"alpha": 2}, 'NashMTL has no argument "alpha"; valid are "on", "normalize", '),
    (GLS, {"preference": {"a": 2}}, 'GLS has no argument "preference"; methods of gradients, such as UPGrad'),
    (RLW, {"on": "features"}, 'RLW has no argument "on"; valid are "seed", "every", "tasks"'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "message"), OPTIONS)
def test_options_are_checked(kind: Any, options: dict, message: str) -> None:
    with pytest.raises(TypeError if "has no argument" in message else ValueError) as raised:
        kind(**options)
    assert message in str(raised.value)


# ---- batches in which numbers are not finite, or tasks are absent ------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["losses", "gramian", "no gradient"])
def test_what_is_not_finite_changes_nothing(bad: float, where: str) -> None:
    method, gradients, losses, weights = GradNorm(), rows(3, 4), np.ones(3), np.arange(3.0)
    gramian, state = gradients @ gradients.T, GradNorm().start(3)
    if where == "no gradient":
        gramian[:] = 0
    else:
        {"losses": losses[1:2], "gramian": gramian[0, 2:]}[where][:] = bad
    after, now = weigh_gradients(method, losses, gramian, weights, state)
    assert after is weights and now is state


@of_each(LOSSES)
def test_a_loss_that_is_not_finite_changes_nothing(method: LossMethod) -> None:
    weights, state = weigh(method, [2.0, 3.0], np.ones(2), method.start(2))
    for bad in (np.nan, np.inf):
        same, now = weigh(method, [2.0, bad], weights, state)
        np.testing.assert_array_equal(same, weights)
        np.testing.assert_equal(now, state)
    np.testing.assert_array_equal(weigh(method, [0.0, 0.0], np.array([0.3, 0.7]), state)[0], [0.3, 0.7])


@of_each(LOSSES)
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
        for key in new.keys() - {"epoch", "done"}:
            assert new[key][1] == state[key][1]
        np.testing.assert_allclose(weights[[0, 2]], (2 / 3 if method.averages else 1.0) * pair)
        state = new


@pytest.mark.parametrize("preference", [None, [2.0, 1.0, 1.0]], ids=["equal", "preferred"])
@of_each(ALL)
def test_absent_tasks_leave_the_others_their_shares(method: Any, preference: Any) -> None:
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
        weights = weights_of(method, gradients, given, there)
        np.testing.assert_allclose(weights[kept], share * expected, rtol=1e-9)
        assert not weights[~kept].any()


@of_each([UPGrad(), DualProj(), AlignedMTL(), MGDA(), IMTLG(), GLS(), FAMO()])
def test_a_task_whose_weight_is_declared_as_0_has_no_share(method: Any) -> None:
    """The third of three: the others have halves."""
    ones, state = np.ones(3), method.start(3)
    if isinstance(method, GramianMethod):
        weights, _ = weigh_gradients(method, ones, np.diag([1.0, 1.0, 0.0]), ones, state, weighed=2)
    else:
        measured = measured_losses(np, 3, np.array([2.0, 2.0, 0.0]), np.zeros(3))
        weights, _ = weigh_losses(method, measured, ones, state, weighed=2)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0], rtol=1e-7)


def test_a_task_that_no_epoch_measured_keeps_its_mean_in_dwa() -> None:
    method = DWA()
    weights, state = np.ones(2), method.start(2)
    for epoch, losses in enumerate([[4.0, 2.0], [2.0, 0.0], [1.0, 2.0]]):
        weights, state = weigh(method, losses, weights, state, epoch)
    ratios = np.exp(np.array([0.5, 1.0]) / 2)
    np.testing.assert_allclose(weights, 2 * ratios / ratios.sum())


# ---- how much a task counts --------------------------------------------------------------------------------


@of_each(ALL)
def test_equal_preferences_are_none(method: Any) -> None:
    for normalize in (False, True, "largest", "mean"):
        one = type(method)(normalize=normalize)
        expected = weights_of(one, rows(4, 6))
        np.testing.assert_allclose(weights_of(one, rows(4, 6), [3, 3, 3, 3]), expected, rtol=1e-9)


@of_each([each for each in ALL if not isinstance(each, GradNorm)])
def test_twice_as_important_is_twice_the_weight(method: Any) -> None:
    """Of orthogonal gradients, but in CAGrad; in FairGrad, it is as if there were two such tasks.

    And of normalised gradients, whatever the scale of their losses is.
    """
    weights = weights_of(method, np.eye(3), [2, 1, 1])
    ratio = {"FairGrad": 2 ** (1 / 3), "NashMTL": 2**0.5}.get(type(method).__name__, 2.0)
    if not getattr(method, "c", 0):
        assert weights[0] / weights[1] == pytest.approx(ratio) and weights[1] == pytest.approx(weights[2])
    gradients, scale, method = rows(4, 6), np.array([1.0, 1e4, 1e-3, 7.0]), type(method)(normalize=True)
    expected = weights_of(method, gradients, [2, 1, 1, 0.5])
    found = weights_of(method, gradients * scale[:, np.newaxis], [2, 1, 1, 0.5]) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("preference", [[1, 1, 1, 1], [3, 1, 2, 0.5]], ids=["equal", "preferred"])
@of_each([IMTLG(), ConFIG(), MGDA()])
def test_projections_are_proportional_to_the_preference(method: Any, preference: Any) -> None:
    """MGDA equals decreases, and leaves tasks out whose losses fall faster."""
    gradients = rows(4, 12, scale=0.1)
    weights = weights_of(method, gradients, preference)
    shares = gradients @ (weights @ gradients) / preference
    if not isinstance(method, MGDA):
        shares /= np.linalg.norm(gradients, axis=1)
    assert (weights > 0).sum() >= 3
    np.testing.assert_allclose(shares[weights > 0], shares.min(), rtol=1e-6)


def test_pcgrad_weighs_the_gradients_from_which_conflicts_were_removed() -> None:
    one, other = gradients = np.array([[1.0, 0.2], [-1.0, 1.0]])
    inner = one @ other
    projected = [one - inner / (other @ other) * other, other - inner / (one @ one) * one]
    expected = (3 * projected[0] + projected[1]) / 2
    np.testing.assert_allclose(weights_of(PCGrad(), gradients, [3, 1]) @ gradients, expected)


def test_a_preference_is_kept_by_cagrad_near_its_mean() -> None:
    """It is c from the weighted mean, and its smallest decrease of a loss is larger than the mean's."""
    gradients, preference = rows(3, 6), np.array([2.0, 0.5, 0.5])
    mean = preference @ gradients / 3
    vector = weights_of(CAGrad(0.3), gradients, preference) @ gradients
    assert np.linalg.norm(vector - mean) == pytest.approx(0.3 * np.linalg.norm(mean))
    assert (gradients @ vector).min() > (gradients @ mean).min()


def test_gradnorm_comes_to_lengths_in_proportion_to_the_preference() -> None:
    """All losses have their first values. Where a task is absent, the sum of the others' weights stays."""
    method, state, ones = GradNorm(learning_rate=0.005), GradNorm().start(3), np.ones(3)
    gramian, preference = np.diag([1.0, 4.0, 9.0]), np.array([1.5, 1.0, 0.5])
    for step in range(800):
        there = np.array([step % 5 != 0, 1.0, 1.0])
        given = gramian * np.outer(there, there)
        _, state = weigh_gradients(method, ones, given, ones, state, preference=preference)
        assert state["weights"].sum() == pytest.approx(3)
    lengths = state["weights"] * [1, 2, 3]
    np.testing.assert_allclose(lengths / lengths.sum(), preference / 3, rtol=0.05)


# ---- methods of a user's own -------------------------------------------------------------------------------


class Inverse(GramianMethod):
    """For equally long gradients."""

    def solve(self, gramian: Any, step: int = 0) -> Any:
        return (1 / np.sqrt(np.diag(gramian))).tolist()


class Powers(GramianMethod):
    """Uses the preference itself."""

    def solve(self, gramian: Any, step: int = 0, preference: Any = 1.0) -> Any:
        return np.ones(len(gramian)) * preference**2


class Counting(GramianMethod):
    """Has a number among what it remembers."""

    def weights(self, measured: Any, state: dict) -> tuple:
        return np.full(measured.tasks, 2.0), {"batches": state["batches"] + 1}


def test_methods_of_your_own() -> None:
    gradients = np.diag([1.0, 2.0, 4.0])
    np.testing.assert_allclose(weights_of(Inverse(), gradients, [2, 1, 1]), [1.5, 0.375, 0.1875])
    np.testing.assert_allclose(weights_of(Powers(), gradients, [2, 1, 1]), [2.25, 0.5625, 0.5625])
    assert weights_of(Inverse(), gradients).tolist() == [1.0, 0.5, 0.25]
    weights, state = weigh_gradients(Counting(), np.ones(2), np.diag([1.0, 0.0]), np.ones(2), {"batches": 4})
    assert (weights.tolist(), state) == ([2.0, 0.0], {"batches": 5})
    with pytest.raises(NotImplementedError):
        GramianMethod().solve(np.eye(2))


@pytest.mark.parametrize("normalize", [False, "largest"])
@pytest.mark.parametrize("kind", [DualProj, Inverse, IMTLG, GradNorm])
def test_smooth_weights_are_the_average_by_hand(kind: Any, normalize: Any) -> None:
    """That of a task stays where the task is absent, and all stay where a number is not finite."""
    method, plain, ones = kind(smooth=0.8, normalize=normalize), kind(normalize=normalize), np.ones(3)
    state, other, average = method.start(3), plain.start(3), np.full(3, np.nan)
    for seed, there in enumerate([[1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]]):
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


def stch(mu: float, losses: np.ndarray, factor: Any = 1.0) -> np.ndarray:
    """Return the weights after the epoch of the reference; all losses are multiplied by `factor`."""
    method = STCH(mu)
    _, state = weigh(method, factor * REFERENCE, np.ones(3), method.start(3))
    return weigh(method, factor * losses, np.ones(3), state, epoch=1)[0]


def test_stch_minimises_a_smooth_maximum_of_relative_losses() -> None:
    """With a small mu, the largest alone; with a large one, the sum of the logarithms, as in the warm-up."""
    losses = np.array([1.5, 0.45, 20.0])
    np.testing.assert_allclose(stch(1e-4, losses), [0, 3 / 0.45, 0], atol=1e-12)
    np.testing.assert_allclose(stch(1e6, losses), 1 / losses, rtol=1e-5)
    for mu in (0.1, 1.0, 5.0):
        factor = np.array([1e-3, 5.0, 1e4])  # what multiplies a loss has no effect
        np.testing.assert_allclose(stch(mu, losses, factor) * factor, stch(mu, losses))
        assert (stch(mu, losses) * losses).sum() == pytest.approx(3)


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
