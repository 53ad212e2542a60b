"""What methods cannot weigh; and the figures of gradients: means over the batches of an epoch."""

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, SpecError, TaskSpec
from multifit.balance import GLS, LossMethod, UPGrad
from multifit.balance.balancers import ChosenParameters
from multifit.balance.tasks import CHUNK, GradientFigures, check_method, tasks_of
from multifit.distributed import ALONE


class Lacking:
    """Has the functions of a method alone."""

    start = weights = LossMethod.start


class Needy(UPGrad):
    needs = "gradients"


def loss(*args: Any) -> float:
    return 0.0


def of(weight: float = 1.0, output: str = "digit", **options: Any) -> LossSpec:
    return LossSpec(loss, output, output, weight=weight, **options)


PAIRS = {name: of() for name in ("a", "a_b", "b", "b_b")}
PREFERRED = {"house": 2, "digti": 2, "size": 3}
# By message: the method, and the losses.
REFUSED: dict[str, tuple[Any, dict[str, LossSpec]]] = {
    "balance: it is the class GLS; give an instance: GLS()": (GLS, {}),
    "balance: it is 'UPGrad'; valid is a method of multifit.balance": ("UPGrad", {}),
    'Lacking has no "needs", "on_device", "every", "groups"; derive it from': (Lacking(), {}),
    "Needy.needs is 'gradients'; valid are \"nothing\", \"losses\", \"gramian\"": (Needy(), {}),
    'the losses "digit" are bound to trainers, so balance= cannot': (GLS(), {"digit": of(trainers="body")}),
    'tasks["a"]: there is no loss "digits" (did you mean "digit"?)': (GLS(tasks={"a": ["digits"]}), {}),
    'tasks["a"] has no loss': (GLS(tasks={"a": []}), {}),
    'the loss "digit" is in the tasks "a", "b"': (GLS(tasks={"a": ["digit"], "b": ["digit"]}), {}),
    'the task "digit" has the name of a loss that is not in it': (GLS(tasks={"digit": ["parity"]}), {}),
    'there is one task, "a", and nothing to weigh': (GLS(tasks={"a": ["digit", "parity"]}), {}),
    'losses of weight 0 have no gradient, which leaves one task, "digit", and nothing to':
        (UPGrad(), {"parity": of(0)}),
    "losses of weight 0 have no gradient, which leaves no task to weigh; leave balance= out":
        (UPGrad(), {"digit": of(0), "parity": of(0)}),
    'the figure "weight_digit" is also that of a loss or metric': (GLS(), {"weight_digit": of()}),
    'two pairs of tasks have the figure "cosine_a_b_b"; rename a task': (GLS(), PAIRS),
    'balance: preference: there is no task "house"; valid are "digit", "parity"':
        (UPGrad(preference=PREFERRED), {}),
    'there is no task "digti" (did you mean "digits"?); valid are "digits", "parity"':
        (UPGrad(preference=PREFERRED, tasks={"digits": ["digit"]}), {}),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_weighed_is_refused(message: str) -> None:
    method, losses = REFUSED[message]
    losses = {"digit": of(), "parity": of(), **losses}
    spec = TaskSpec(outputs="digit", labels="digit", losses=losses)
    with pytest.raises(SpecError) as raised:
        check_method(method, spec)
        tasks_of(method, spec)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", 'balance: on="(" is not a regular expression'),
        ("bodies", 'balance: on="bodies" matches no parameter; valid are "features"'),
        ("featurs", '(did you mean "features"?)'),
        ("digit.*", 'on="digit.*" selects no parameter that tasks share'),
    ],
)
def test_parameters_that_cannot_be_compared_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        ChosenParameters(pattern, dict.fromkeys(["body.weight", "digit.weight"]), ALONE).reached(
            ["body.weight"]
        )
    assert message in str(raised.value)


# ---- figures


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
