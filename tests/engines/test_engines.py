"""The registry of engines."""

from types import SimpleNamespace
from typing import Any

import pytest

from multifit import MultiEstimator
from multifit.engines import choose_engine, engine_module, registry
from multifit.engines.loaders import Loaders
from multifit.estimator.data import rank_problems
from multifit.gluon.compat import mx
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import two_heads
from tests.common.specs import two_head_spec


class Device:
    """Stands for torch.device."""

    __module__ = "torch"

    def __str__(self) -> str:
        return "cuda:1"


def has(context: Any) -> bool:
    """Stand, as this module, for an engine that runs on a machine with one GPU."""
    return getattr(context, "device_id", 0) == 0


LOGGED = 'engine: torch, as context is "'
# the engine, the context, whether torch is installed, what is chosen and logged
CHOICES: list[tuple[str, Any, bool, str, str | None]] = [
    ("auto", None, True, "mxnet", None),
    ("auto", mx.cpu(), True, "mxnet", None),
    ("auto", [mx.cpu(0), mx.cpu(1)], True, "mxnet", None),
    ("auto", "cpu", True, "mxnet", None),
    ("auto", "cuda", True, "torch", f'{LOGGED}cuda"'),
    ("auto", "cuda:1", True, "torch", f'{LOGGED}cuda:1"'),
    ("auto", Device(), True, "torch", f'{LOGGED}cuda:1"'),
    ("auto", ["cuda:0"], True, "torch", f"{LOGGED}['cuda:0']\""),
    ("auto", mx.gpu(0), True, "torch", "engine: torch, as MXNet cannot compute on gpu(0)"),
    ("auto", mx.gpu(1), True, "mxnet", None),  # which then says itself that there is no such GPU
    ("auto", mx.gpu(0), False, "mxnet", None),
    ("mxnet", "cuda:0", True, "mxnet", None),
    ("torch", "cuda:0", True, "torch", None),
]


@pytest.mark.parametrize(("engine", "context", "installed", "expected", "line"), CHOICES, ids=str)
def test_which_engine_runs(engine, context, installed, expected, line, monkeypatch) -> None:
    monkeypatch.setitem(registry.MODULES, "torch", __name__)
    monkeypatch.setattr(registry, "find_spec", lambda name: installed or None)
    lines: list[str] = []
    assert choose_engine(engine, context, lines.append) == expected
    assert lines == ([line] if line else [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile": True}, 'compile=True needs engine="torch"; engine is "mxnet"'),
        ({"compile": 2}, 'compile is .*; valid is "auto", "cudagraphs", True or False'),
        ({"engine": "tensorflow"}, 'valid is "auto", "mxnet" or "torch"'),
    ],
)
def test_options_that_no_engine_has(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiEstimator(two_heads(), two_head_spec(), **options)


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'engine="torch" needs PyTorch: pip install "gluon-multifit.torch'):
        MultiEstimator(two_heads(), two_head_spec(), engine="torch")


@pytest.mark.parametrize("engine", ["mxnet", "torch"])
def test_an_engine_that_cannot_be_imported(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: object())
    monkeypatch.setitem(registry.MODULES, engine, "multifit.nothing")
    with pytest.raises(ImportError, match=f'^engine="{engine}" cannot be imported: No module named'):
        engine_module(engine)


def test_a_net_of_torch_runs_with_torch() -> None:
    assert choose_engine("auto", None, library="torch") == choose_engine("torch", None, library="torch")
    with pytest.raises(ValueError, match='engine="mxnet" runs Gluon nets, not a torch.nn.Module; leave'):
        choose_engine("mxnet", None, library="torch")


def test_loaders_of_no_library_are_read_as_they_are() -> None:
    assert Loaders().reads([])


def test_loaders_that_a_sampler_divides_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = SimpleNamespace(is_divided=lambda data: True)
    monkeypatch.setattr("multifit.estimator.data.loaders_of", lambda data: divided)
    world = SimpleNamespace(alone=False, size=2)
    (problem,) = rank_problems(world, "train_data", [1])  # type: ignore[arg-type]
    assert "with a DistributedSampler, which divides the samples already" in problem.message


def test_gradients_of_the_last_batch() -> None:
    estimator = MultiEstimator(two_heads(), two_head_spec())
    estimator.fit(in_batches(two_head_arrays().values()), epochs=1, event_handlers=[])
    gradients = estimator.values(gradients=True)
    assert {name: each.shape for name, each in gradients.items()} == {
        name: each.shape for name, each in estimator.values().items() if name in gradients
    }
    assert any(each.any() for each in gradients.values())
