"""What the bridge makes of a net, and comparisons."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multifit.distributed import ALONE
from multifit.distributed.log_once import LogOnce, get_logger
from multifit.engines import Setup
from multifit.torch.from_gluon import Bridge, converted

LOG = LogOnce(get_logger())


def bridged(net: Any, spec: Any, trainers: Any = None, **options: Any) -> tuple[Setup, Bridge]:
    """Return what the bridge makes of a net, a spec and trainers."""
    fields = {"context": "cpu", "initializer": None, "frozen": (), "precision": "float32", "balance": None}
    setup = Setup(net, spec, trainers, compile=False, world=ALONE, **{**fields, **options})
    return converted(setup, LOG)


def by_sample(values: np.ndarray) -> np.ndarray:
    """Return the sums of a loss's values over each sample."""
    return values.reshape(len(values), -1).sum(axis=1) if values.ndim else values


def assert_same(ours: Any, theirs: Any, tolerance: float, path: str = "") -> None:
    """Assert that nested arrays are equal up to a share of the largest number in each."""
    if isinstance(theirs, Mapping):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert_same(ours[name], theirs[name], tolerance, f"{path} {name}")
    elif isinstance(theirs, (list, tuple)):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, tolerance, path)
    else:
        assert ours.shape == theirs.shape or ours.size == theirs.size == 1, path
        atol = tolerance * np.abs(theirs).max(initial=1)
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, rtol=0, atol=atol, err_msg=path)
