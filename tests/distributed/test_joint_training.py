"""Several ranks train as one process does; the ranks are threads. All cases: nightly/test_distributed.py."""

from __future__ import annotations

import numpy as np
import pytest

from multifit.distributed import ALONE
from tests.common.joint_training import CASES, assert_equal_training, joint_training
from tests.common.ranks import run_ranks

QUICK = ["several at once", "lists", "uneven parts", "mixed samples", "a net that branches", "two devices"]


@pytest.mark.parametrize("case", QUICK)
def test_two_ranks_train_as_one(case):
    alone = joint_training(ALONE, **CASES[case])
    ranks = run_ranks(2, lambda world: joint_training(world, **CASES[case]))
    for joint in ranks:
        assert_equal_training(alone, joint)
    for name, value in ranks[0].items():  # the ranks themselves do not differ at all
        np.testing.assert_array_equal(ranks[1][name], value, err_msg=name)
