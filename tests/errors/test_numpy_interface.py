"""MXNet's NumPy interface: its arrays are converted, and the interface itself is refused by name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import SpecError

import mxnet as mx  # isort: skip

from .setups import Setup, arrays, new_setup

ACTIVE = "MXNet's NumPy interface is active (npx.set_np())"


USES: dict[str, Callable[[Any], Any]] = {
    "check": lambda estimator: estimator.check([arrays()]),
    "fit": lambda estimator: estimator.fit([arrays()], epochs=1),
    "predict": lambda estimator: estimator.predict(arrays()[0]),
}


@pytest.mark.parametrize("use", USES)
def test_it_is_refused_wherever_it_is_switched_on(use: str) -> None:
    setup = new_setup()
    estimator = setup.make()
    mx.npx.set_np()
    try:
        with pytest.raises(SpecError) as raised:
            USES[use](estimator)
        with pytest.raises(SpecError) as refused:
            setup.make()
    finally:
        mx.npx.reset_np()
    assert ACTIVE in str(raised.value) and "call npx.reset_np() first" in str(raised.value)
    assert ACTIVE in str(refused.value)
    USES[use](estimator)


def test_a_net_that_was_initialised_with_it() -> None:
    mx.npx.set_np()
    try:
        setup = new_setup()
    finally:
        mx.npx.reset_np()
    setup.refused(SpecError, "net: the net was initialised with MXNet's NumPy interface")


def test_its_arrays_are_converted(setup: Setup) -> None:
    batch = [mx.np.array(array) for array in arrays()]
    setup.but(data=[batch, arrays(), batch]).trains()
    predicted = setup.make().predict(mx.np.array(arrays()[0]))
    np.testing.assert_array_equal(predicted["digit"], setup.make().predict(arrays()[0])["digit"])
