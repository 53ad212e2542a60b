"""A fit of a single task on PyTorch: that of MXNet, and it resumes."""

from functools import partial
from pathlib import Path

import pytest

from multifit import TrainerSpec
from multifit.seeding import seed_everything
from tests.common.nets import normed_heads
from tests.common.specs import two_head_spec
from tests.torch.fits import assert_engines_agree, batches, run
from tests.torch.runs import assert_resumes, estimator_of

TRAINERS = {name: TrainerSpec(f"{name}.*", "adam", {"wd": 0.1}) for name in ("body", "digit", "size")}


@pytest.mark.parametrize("task", ["digit", "size"])
def test_twenty_steps_are_those_of_mxnet(task: str) -> None:
    def fit(engine: str) -> tuple[object, ...]:
        seed_everything(3)
        net = normed_heads(dropout=0.0)
        net.cast("float64")
        net.hybridize()
        spec = two_head_spec(labels=["digit", "size", "weight"], unused=["weight"]).only(task)
        return run(engine, net, spec, TRAINERS, batches())

    assert_engines_agree(fit)


@pytest.mark.parametrize(("engine", "stop"), [("torch", 3), ("mxnet", 7)])
def test_it_resumes(engine: str, stop: int, tmp_path: Path) -> None:
    make = partial(estimator_of, "float64", spec=two_head_spec().only("digit"), trainers=TRAINERS)
    assert_resumes(make, tmp_path, (engine, "torch"), stop)
