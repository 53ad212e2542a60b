"""``compile=True``: what torch runs is the compiled program, and it is refused where nothing can compile.

Torch traces nothing here, for a compiler takes a minute; ``nightly/test_torch_compile.py`` compiles.
"""

from functools import partial
from typing import Any

import pytest
import torch

from multifit import SpecError
from multifit.torch.traced import program
from tests.torch.cuda_graphs import counted_replays
from tests.torch.runs import BATCHES, assert_equal, estimator_of, values


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="needs PyTorch 2.6")
def test_every_program_is_compiled_and_captured_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made, compiled = [], program.compiled

    def fit(**options: Any) -> Any:
        estimator = estimator_of(**options)
        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])
        return dict(history), values(estimator), estimator.predict(BATCHES)

    def count(module: Any) -> Any:
        made.append(module)
        return compiled(module)

    monkeypatch.setattr(program, "compiled", count)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    expected = fit(compile=False)
    assert not made
    replays = counted_replays(monkeypatch)
    with torch.compiler.set_stance("force_eager"):
        for one, other in zip(expected, fit(compile=True)):
            assert_equal(one, other)
    assert len(made) == 3  # one that trains, one that evaluates, one that predicts
    assert replays.count


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    estimator = estimator_of(compile=True)
    message = 'compile=True: torch cannot compile: .*; leave it out, or use engine="mxnet"'
    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert_equal(values(estimator_of()), values(estimator))
