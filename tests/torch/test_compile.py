"""``compile=True``: what torch runs is the compiled program, and it is refused where nothing can compile.

Torch traces nothing here, for a compiler takes a minute; ``nightly/test_torch_compile.py`` compiles.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import pytest
import torch
from torch._dynamo.backends import cudagraphs
from torch._inductor import cudagraph_trees

from multifit import GradientAccumulation, SpecError
from multifit.torch.engine import compiled, program
from tests.torch.runs import BATCHES, assert_equal, estimator_of, values
from tests.torch.test_accumulation import rhythms
from tests.torch.test_hooks import Double, Penalty


def test_every_program_is_compiled_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def fit(**options: Any) -> Any:
        estimator = estimator_of(**options)
        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])
        return dict(history), values(estimator), estimator.predict(BATCHES)

    def count(module: Any, how: Any) -> Any:
        made.append(module)
        return compiled.compiled(module, how)

    monkeypatch.setattr(program, "compiled", count)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    expected = fit()
    assert not made
    with torch.compiler.set_stance("force_eager"):
        for one, other in zip(expected, fit(compile=True)):
            assert_equal(one, other)
    assert len(made) == 3  # one that trains, one that evaluates, one that predicts


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that fails is to torch what a compiler that is missing is."""

    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fails))
    estimator = estimator_of(compile=True)
    message = 'compile=True: torch cannot compile: .*; leave it out, or use engine="mxnet"'
    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[])
    assert_equal(values(estimator_of()), values(estimator))


def test_cuda_graphs() -> None:
    """On the CPU torch says that there is nothing to capture, and runs what it would have captured."""

    def fit(**options: Any) -> Any:
        estimator = estimator_of("float64", **options)
        estimator.fit(BATCHES, epochs=2, event_handlers=[])
        return values(estimator)

    assert_equal(fit(), fit(compile="cudagraphs"), 1e-10)
    static = torch.zeros(2)  # what a graph returns is overwritten by its next replay
    function = compiled.copying(lambda value: (static.copy_(value),))
    (first,), (second,) = function(torch.ones(2)), function(torch.full((2,), 2.0))
    assert first.tolist() == [1, 1] and second.tolist() == [2, 2]


def replay(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Let torch capture on the CPU what would be CUDA graphs, and return what the captured functions own.

    A function returns the same memory with each call, which loses its values where a new step begins.
    """
    owned: list[torch.Tensor] = []

    def capture(model: Callable[[list[Any]], Any], inputs: Any, *_: Any, **options: Any) -> Any:
        places: dict[int, torch.Tensor] = {}

        def call(given: list[Any]) -> list[Any]:
            results = list(model(given))
            for at, result in enumerate(results):
                if isinstance(result, torch.Tensor):
                    if at not in places:
                        places[at] = result.clone()
                        owned.append(places[at])
                    results[at] = places[at].copy_(result).detach()
            return results

        return call

    def lose() -> None:
        for tensor in owned:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)

    monkeypatch.setattr(cudagraphs, "check_for_skip", lambda *_: None)
    monkeypatch.setattr(cudagraphs, "get_device_index", lambda _: 0)
    monkeypatch.setattr(cudagraph_trees, "cudagraphify_impl", capture)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lose)
    return owned


@pytest.mark.parametrize(
    "options, handlers",
    [
        ({"trainers": rhythms()}, []),
        ({"precision": "float16"}, [GradientAccumulation(3)]),
        ({}, [Double(), Penalty()]),
    ],
    ids=["accumulates", "float16", "changes outputs"],
)
def test_no_replay_overwrites_what_is_needed(
    options: Any, handlers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(**compile: Any) -> Any:
        estimator = estimator_of("dropout" if "precision" in options else "float64", **options, **compile)
        history = estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=handlers)
        return dict(history), values(estimator), estimator.predict(BATCHES)

    expected, owned = fit(), replay(monkeypatch)
    for one, other in zip(expected, fit(compile="cudagraphs")):
        assert_equal(one, other, 1e-10)
    assert owned
