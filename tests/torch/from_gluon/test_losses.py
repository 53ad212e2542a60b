"""Operators of losses."""

import numpy as np
import pytest

from multifit.gluon.compat import mx
from tests.torch.from_gluon.agreement import assert_agree, normal

S = mx.sym


@pytest.mark.parametrize("blank", ["first", "last"])
@pytest.mark.parametrize("given", [(), ("data",), ("label",), ("data", "label")])
@pytest.mark.parametrize("steps", [6, 3])
def test_ctc_loss(steps, given, blank):
    end = 0 if blank == "first" else -1
    labels = np.array([[1, 2, 2], [3, end, end], [2, 1, end]], "float32")
    lengths = {"data": [steps, steps - 1, steps], "label": [3, 1, 2]}
    options = {f"use_{each}_lengths": each in given for each in lengths}
    (losses,) = assert_agree(
        lambda x, y, *z: S.CTCLoss(
            x, y, blank_label=blank, **options, **{f"{name}_lengths": each for name, each in zip(given, z)}
        ),
        normal(steps, 3, 5).astype("float32"),
        labels,
        *[np.array(lengths[each], "float32") for each in given],
        constant=range(0 if steps == 3 else 1, 2 + len(given)),  # MXNet's gradients of 0 are random numbers
        tolerance=1e-5,
    )
    assert (losses[0] == 0) == (steps == 3)
