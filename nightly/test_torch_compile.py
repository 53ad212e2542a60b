"""``compile=True``: a step that torch compiles has the numbers of one that it does not; it takes a minute."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

from multifit import SpecError
from tests.torch.test_runner import BATCHES, assert_equal, estimator_of, values


def test_a_compiled_step_is_the_step() -> None:
    of_steps, of_values = [], []
    for compiles in (False, True):
        estimator = estimator_of("float64", compile=compiles)
        of_steps.append(dict(estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])))
        of_values.append(values(estimator))
    assert_equal(*of_steps, 1e-10)
    assert_equal(*of_values, 1e-10)


def test_without_a_compiler_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config

    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    monkeypatch.setattr(config, "force_disable_caches", True)
    estimator = estimator_of(compile=True)
    with pytest.raises(SpecError, match="torch cannot compile: .*No working C.. compiler.*; leave it out"):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert_equal(values(estimator_of()), values(estimator))
