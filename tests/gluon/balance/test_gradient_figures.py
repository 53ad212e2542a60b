"""Figures of the tasks' gradients, computed for many batches at once."""

from __future__ import annotations

import numpy as np

from multifit.gluon.balance.gradient_figures import CHUNK, GradientFigures


def gramians(count: int) -> list[np.ndarray]:
    rows = np.random.RandomState(0).randn(count, 3, 4)
    return [each @ each.T for each in rows]


def added(figures: GradientFigures, batches: list[np.ndarray]) -> dict[str, float]:
    for gramian in batches:
        figures.add_gramian(gramian)
    return figures.read()


def test_they_are_the_means_of_each_batch() -> None:
    batches = gramians(CHUNK + 5)
    figures = added(GradientFigures(["a", "b", "c"]), batches)
    cosines = [g[0, 2] / np.sqrt(g[0, 0] * g[2, 2]) for g in batches]
    np.testing.assert_allclose(figures["cosine_a_c"], np.mean(cosines))
    np.testing.assert_allclose(figures["gradnorm_b"], np.mean([np.sqrt(g[1, 1]) for g in batches]))
    signs = [g[np.triu_indices(3, 1)] < 0 for g in batches]
    np.testing.assert_allclose(figures["conflict"], np.mean(signs))


def test_reading_and_saving_in_between_change_no_bit() -> None:
    batches = gramians(CHUNK + 5)
    whole, first, second = (GradientFigures(["a", "b", "c"]) for _ in range(3))
    added(first, batches[:7])
    second.load(first.state())
    assert added(second, batches[7:]) == added(whole, batches)


def test_an_epoch_begins_anew() -> None:
    figures = GradientFigures(["a", "b", "c"])
    figures.add_gramian(np.eye(3))
    figures.reset()
    assert np.isnan(figures.read()["conflict"])
