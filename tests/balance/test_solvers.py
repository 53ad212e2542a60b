"""The solvers' results are minima, also where gradients differ much in length or depend on each other."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit.balance import UPGrad, gradients, solvers
from multifit.balance.solvers import minimum, projected, regularized, shortest, solved


def independent(tasks: int, random: Any) -> np.ndarray:
    return random.randn(tasks, 2 * tasks + 10)


def long_and_short(tasks: int, random: Any) -> np.ndarray:
    return independent(tasks, random) * 10 ** random.uniform(-5, 3, (tasks, 1))


def alike(tasks: int, random: Any) -> np.ndarray:
    """Return gradients of a few kinds, that are nearly the same within a kind."""
    kinds = random.randn(max(2, tasks // 4), 100)
    return kinds[np.arange(tasks) % len(kinds)] + 1e-5 * random.randn(tasks, 100)


def dependent(tasks: int, random: Any) -> np.ndarray:
    """Return gradients of which one is the sum of others, up to rounding."""
    rows = independent(tasks, random)
    rows[-1] = rows[:-1][:3].sum(axis=0)
    return rows


def few_numbers(tasks: int, random: Any) -> np.ndarray:
    """Return more gradients than there are numbers in one, so that some combinations of them cancel."""
    return random.randn(tasks, max(1, tasks - 3))


def opposite(tasks: int, random: Any) -> np.ndarray:
    """Return so many gradients in so few directions that only 0 conflicts with none."""
    return random.randn(tasks, max(1, tasks // 2))


each_case = pytest.mark.parametrize(
    ("kind", "tasks", "seed"),
    [
        (kind, tasks, seed)
        for kind in (independent, long_and_short, alike, dependent, few_numbers, opposite)
        for tasks in (2, 3, 5, 10, 20)
        for seed in range(2)
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)


def gramian(kind: Callable, tasks: int, seed: int) -> np.ndarray:
    rows = kind(tasks, np.random.RandomState(seed))
    return rows @ rows.T / np.sum(rows * rows)


@each_case
def test_each_projection_meets_the_conditions_of_a_minimum(kind: Callable, tasks: int, seed: int) -> None:
    M = regularized(gramian(kind, tasks, seed), 1e-12)
    for lower in (np.eye(tasks) / tasks, np.full((1, tasks), 1 / tasks)):
        v = projected(M, lower)
        slopes, rounding = v @ M, 1e-13 * (v @ np.abs(M))
        assert (v >= lower).all() and (slopes >= -rounding).all()
        assert (np.abs(slopes) <= rounding)[v > lower].all()


@each_case
@pytest.mark.parametrize("c", [0.2, 0.9, 3.0, math.inf], ids=str)
def test_each_mean_meets_the_conditions_of_a_minimum(kind: Callable, tasks: int, seed: int, c: float) -> None:
    M = gramian(kind, tasks, seed)
    mean = M.mean(axis=1)
    radius = c * math.sqrt(M.mean())
    w, length = shortest(M, radius, np.full(tasks, 1 / tasks) if c < math.inf else None)
    assert (w >= 0).all() and w.sum() == pytest.approx(1, abs=1e-12)
    assert length == pytest.approx(math.sqrt(max(w @ M @ w, 0)), abs=1e-9)
    if length <= 1e-6 * (w @ np.sqrt(M.diagonal())):
        return  # 0, up to rounding
    slopes = M @ w + length / radius * mean
    rounding = 1e-10 * (np.abs(M) @ w + length / radius * np.abs(mean))
    away = slopes - w @ slopes
    assert (away >= -rounding).all() and (np.abs(away) <= rounding)[w > 0].all()


@each_case
def test_the_fast_ways_come_to_the_exact_minimum(
    kind: Callable, tasks: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where gradients cancel, the smallest value is only rounding: of a length, the root of a product's."""

    def values() -> list[float]:
        means = [shortest(M), shortest(M, radius_of_half, np.full(tasks, 1 / tasks))]
        v = projected(definite, np.eye(tasks) / tasks)
        return [
            *(w @ M.mean(axis=1) / radius + length for (w, length), radius in zip(means, radii)),
            *np.sum(v @ definite * v, axis=1),
        ]

    M = gramian(kind, tasks, seed)
    definite, radius_of_half = regularized(M, 1e-12), 0.5 * math.sqrt(M.mean())
    radii = math.inf, radius_of_half
    fast = values()
    monkeypatch.setattr(solvers, "EXCHANGES", 0)
    rounding = 1e-8 if kind in (few_numbers, opposite) else 1e-14
    np.testing.assert_allclose(fast, values(), rtol=1e-10, atol=rounding)


@pytest.mark.parametrize("total", [None, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(24))
def test_minimum_meets_the_conditions_of_a_minimum(total: Any, seed: int) -> None:
    random, count = np.random.RandomState(seed), 1 + seed % 8
    factor = random.randn(count, count + (total is None))
    Q, b = factor @ factor.T, random.randn(count) - seed % 3 / 2
    w = minimum(Q, b, total)
    slope = Q @ w + b
    level = 0.0 if total is None else slope[w > 0].mean()
    assert (w >= 0).all() and (slope >= level - 1e-8).all()
    np.testing.assert_allclose(slope[w > 0], level, atol=1e-8)
    assert total is None or w.sum() == pytest.approx(total)


def test_equations_without_a_unique_solution() -> None:
    np.testing.assert_allclose(solved(np.ones((2, 2)), np.ones(2)), [0.5, 0.5])
    w, length = shortest(np.full((3, 3), 1 / 3))
    assert w.sum() == pytest.approx(1) and length == pytest.approx(math.sqrt(1 / 3))


def test_many_tasks_are_projected_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part's systems of equations take as much memory as the square of the number of tasks."""
    M = gramian(independent, 10, 0)
    expected, parts = UPGrad().solve(M), []
    monkeypatch.setattr(
        gradients, "projected", lambda M, lower: (parts.append(len(lower)), projected(M, lower))[1]
    )
    monkeypatch.setattr(gradients, "AT_ONCE", 3 * 10**2)
    np.testing.assert_allclose(UPGrad().solve(M), expected, rtol=1e-12)
    assert parts == [4, 4, 2]
