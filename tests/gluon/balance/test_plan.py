"""What a plan says of the parameters that tasks share."""

import re

from multifit import MultiEstimator, TrainerSpec
from multifit.balance import Uncertainty, UPGrad
from tests.common.data import digit_batches
from tests.common.hand_loop import SIZES
from tests.common.nets import hybridized
from tests.common.shared_nets import Nested, Skips, three_tasks, two_heads
from tests.common.specs import digit_spec

BATCHES = digit_batches(SIZES)


def test_the_plan_names_the_method_and_its_tasks() -> None:
    for method, name, option in (
        (UPGrad(every=2), "UPGrad", "every=2"),
        (Uncertainty(), "Uncertainty", "every=1"),
    ):
        plan = MultiEstimator(hybridized(two_heads()), digit_spec(), balance=method).check(BATCHES)
        text = " ".join(str(plan).split())
        (said,) = re.findall(rf"balanced by {name}\((.*?)\): the tasks (.*?) parameters", text)
        assert option in said[0] and said[1] == '"digit", "parity"'
    assert "balanced" not in str(MultiEstimator(hybridized(two_heads()), digit_spec()).check(BATCHES))


def test_the_plan_says_what_is_shared() -> None:
    for on, gradients in (("features", "1.96 kB"), ("parameters", "6.04 kB")):
        estimator = MultiEstimator(hybridized(Skips()), three_tasks(), balance=UPGrad(on=on))
        plan = " ".join(str(estimator.check(BATCHES)).split())
        assert "tasks share 7 parameters and branch at 3 arrays" in plan
        assert 'shared: "scale", "first.weight", "first.bias", "second.weight", ' in plan
        assert f"the tasks' gradients take {gradients}" in plan
    plan = MultiEstimator(hybridized(Nested()), three_tasks(), balance=UPGrad()).check(BATCHES)
    expected = "branch at 2 arrays; 2 pairs of tasks have none of these in common and count as orthogonal"
    assert expected in " ".join(str(plan).split())


def test_a_check_finds_which_losses_reach_which_trainer() -> None:
    trainers = {name: TrainerSpec(f"{name}.*") for name in ("body", "digit", "parity")}
    plan = MultiEstimator(hybridized(two_heads()), digit_spec(), trainers, balance=UPGrad()).check(BATCHES)
    reached = {trainer.name: trainer.losses for trainer in plan.trainers}
    assert reached == {"body": ("digit", "parity"), "digit": ("digit",), "parity": ("parity",)}
