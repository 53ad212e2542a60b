"""The figures of gradients: means over the batches of an epoch, of lengths, cosines and conflicts."""

import numpy as np
import pytest

from multifit.balance.tasks import CHUNK, GradientFigures


def gramians(count: int) -> list[np.ndarray]:
    rows = np.random.RandomState(0).randn(count, 3, 4)
    return [each @ each.T for each in rows]


def added(batches: list[np.ndarray], cut: int = 0) -> GradientFigures:
    """Return the figures of batches, saved and loaded after some of them."""
    first, figures = (GradientFigures("abc"[: len(batches[0])]) for _ in range(2))
    for gramian in batches[:cut]:
        first.add_gramian(gramian)
    figures.load(first.state())
    for gramian in batches[cut:]:
        figures.add_gramian(gramian)
    return figures


def test_reading_and_saving_in_between_change_no_bit() -> None:
    batches = gramians(CHUNK + 5)
    whole = added(batches)
    assert added(batches, 7).read() == whole.read()
    whole.reset()
    assert np.isnan(whole.read()["conflict"])


def test_a_task_counts_in_the_batches_in_which_it_has_a_gradient() -> None:
    """Figures that no batch has measured are NaN, also where several batches are saved and loaded."""
    present = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    batches = [gramian * np.outer(each, each) for gramian, each in zip(gramians(4), present)]
    pairs = [batches[i] for i in (0, 3)]
    cosines = [g[0, 1] / np.sqrt(g[0, 0] * g[1, 1]) for g in pairs]
    expected = {
        "gradnorm_a": np.mean([np.sqrt(batches[i][0, 0]) for i in (0, 1, 3)]),
        "gradnorm_b": np.mean([np.sqrt(g[1, 1]) for g in pairs]),
        "cosine_a_b": np.mean(cosines),
        "conflict": np.mean(np.array(cosines) < -0.1),
        **dict.fromkeys(["gradnorm_c", "cosine_a_c", "cosine_b_c"], np.nan),
    }
    assert added(batches, 2).read() == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("cosine", "conflict"), [(-0.2, 1), (-0.11, 1), (-0.09, 0), (1e-9, 0), (0.9, 0)])
def test_tasks_conflict_if_they_pull_apart(cosine: float, conflict: float) -> None:
    read = added([np.array([[4, 2 * cosine], [2 * cosine, 1]])]).read()
    assert read["conflict"] == conflict and read["cosine_a_b"] == pytest.approx(cosine)


def test_conflict_is_the_share_of_the_pairs_that_were_compared() -> None:
    """Two tasks do not meet; of the other two pairs, one pulls apart."""
    figures = added([np.array([[1, 0.5, 0], [0.5, 1, -0.5], [0, -0.5, 1]])])
    assert figures.read()["conflict"] == 0.5 and figures.never_met() == [("a", "c")]
