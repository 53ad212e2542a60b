"""Figures of the tasks' gradients, computed for many batches at once."""

import numpy as np
import pytest

from multifit.gluon.balance.tasks import CHUNK, GradientFigures


def gramians(count: int) -> list[np.ndarray]:
    rows = np.random.RandomState(0).randn(count, 3, 4)
    return [each @ each.T for each in rows]


def added(figures: GradientFigures, batches: list[np.ndarray]) -> dict[str, float]:
    for gramian in batches:
        figures.add_gramian(gramian)
    return figures.read()


def test_reading_and_saving_in_between_change_no_bit() -> None:
    batches = gramians(CHUNK + 5)
    whole, first, second = (GradientFigures(["a", "b", "c"]) for _ in range(3))
    added(first, batches[:7])
    second.load(first.state())
    assert added(second, batches[7:]) == added(whole, batches)
    whole.reset()
    assert np.isnan(whole.read()["conflict"])


def test_a_task_counts_in_the_batches_in_which_it_has_a_gradient() -> None:
    """Figures that no batch has measured are NaN, also where several batches are saved and loaded."""
    there = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    batches = [gramian * np.outer(each, each) for gramian, each in zip(gramians(4), there)]
    half, figures = (GradientFigures(["a", "b", "c"]) for _ in range(2))
    added(half, batches[:2])
    figures.load(half.state())
    read = added(figures, batches[2:])
    pairs = [batches[i] for i in (0, 3)]
    cosines = [g[0, 1] / np.sqrt(g[0, 0] * g[1, 1]) for g in pairs]
    expected = {
        "gradnorm_a": np.mean([np.sqrt(batches[i][0, 0]) for i in (0, 1, 3)]),
        "gradnorm_b": np.mean([np.sqrt(g[1, 1]) for g in pairs]),
        "cosine_a_b": np.mean(cosines),
        "conflict": np.mean(np.array(cosines) < 0),
        **dict.fromkeys(["gradnorm_c", "cosine_a_c", "cosine_b_c"], np.nan),
    }
    assert read == pytest.approx(expected, nan_ok=True)
