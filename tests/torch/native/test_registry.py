"""Which engine runs a net, and what is said of those that none runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multifit import MultiEstimator, SpecError
from multifit.cli.taskfile import TaskFile
from multifit.engines import choose_engine, engine_module, library_of, precision_name, registry
from multifit.utils.seeding import seed_everything
from multifit.version import installed_versions

ROOT = Path(__file__).parents[3]


class Net(nn.Linear):
    """A module of one's own."""


@pytest.mark.parametrize("make", [lambda: Net(2, 1), lambda: torch.jit.script(nn.Linear(2, 1))])
def test_a_module_is_known_by_its_classes(make: Any) -> None:
    assert library_of(make()) == "torch"


def test_a_block_is_known_by_its_classes() -> None:
    block = type("Block", (), {"__module__": "mxnet.gluon.block"})
    assert library_of(type("Own", (block,), {})()) == "mxnet"


@pytest.mark.parametrize("net", [Net, None, "resnet18", [Net(2, 1)], lambda x: x])
def test_anything_else_is_refused(net: Any) -> None:
    with pytest.raises(SpecError, match=r"not a torch.nn.Module or gluon.Block; give the net itself, an"):
        MultiEstimator(net, nn.MSELoss())


@pytest.mark.parametrize("context", [None, "cpu", "cuda:0", torch.device("cpu")])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_module_runs_with_torch(engine: str, context: Any) -> None:
    assert choose_engine(engine, context, pytest.fail, "torch") == "torch"
    assert engine_module("torch", "torch").__name__ == registry.NATIVE


def test_mxnet_does_not_run_a_module() -> None:
    with pytest.raises(
        ValueError, match='engine="mxnet" runs Gluon nets, not a torch.nn.Module; leave engine'
    ):
        MultiEstimator(Net(2, 1), nn.MSELoss(), engine="mxnet")


@pytest.mark.parametrize("name", ["bfloat", torch.float16, None])
def test_a_precision_that_there_is_not(name: Any) -> None:
    with pytest.raises(ValueError, match='precision is .*; valid are "float32", "bfloat16" or "float16"|"'):
        precision_name(name)


def test_the_library_of_a_file_is_what_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where net() needs the context, so that it is not known by the net."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for number, (code, library) in enumerate({
        "import torch": "torch",
        "from torch import nn": "torch",
        "from torch.nn import Linear": "torch",
        "import torch\nClass = type('C', (), {'__module__': 'mxnet.gluon.nn'})": "mxnet",
        "": "mxnet",
    }.items()):  # fmt: skip
        path = tmp_path / f"of_{number}.py"
        path.write_text(f"def net(context): 0\ndef spec(): 0\ndef data(net): 0\n{code}\n")
        file = TaskFile(path)
        assert file.library == library
        assert file.needs("net", "context") and file.needs("data", "context")
        assert not file.needs("spec", "context")


def test_versions_are_those_of_what_is_imported() -> None:
    versions = installed_versions()
    assert versions["torch"] == torch.__version__ and {"multifit", "python", "numpy"} <= set(versions)
    assert set(installed_versions(["nothing"])) == {"multifit", "python", "numpy"}


def test_torch_is_seeded_with_everything() -> None:
    drawn = []
    for _ in range(2):
        seed_everything(3)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


NEEDED = """
import sys
sys.modules["mxnet"] = None
import multifit, multifit.losses
from multifit.engines import engine_module
for needs in (lambda: engine_module("mxnet"), lambda: multifit.losses.SequenceCELoss):
    try:
        needs()
    except ImportError as error:
        print(error)
"""


def test_what_needs_mxnet_says_so_where_it_is_not_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEEDED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    texts = done.stdout.splitlines()
    assert len(texts) == 2 and texts[0].startswith('engine="mxnet" cannot be imported: Gluon nets need mxnet')
    assert all("which is not installed: pip install mxnet==1.9.1" in text for text in texts)


def test_an_initializer_is_for_gluon_nets() -> None:
    with pytest.raises(
        ValueError, match=r"initializer= is for Gluon nets, .* torch.nn.init, such as in net.apply"
    ):
        MultiEstimator(nn.Linear(2, 2), nn.CrossEntropyLoss(), initializer=object())


def test_a_net_that_is_no_module_is_refused_by_a_named_engine() -> None:
    with pytest.raises(SpecError, match=r"net is \S.*, not a torch.nn.Module"):
        MultiEstimator(nn.Linear, nn.CrossEntropyLoss(), engine="torch")


def test_a_net_that_cannot_be_compiled_trains_as_it_is(monkeypatch: Any, caplog: Any) -> None:
    def fails(net: nn.Module) -> Any:
        def call(*inputs: Any) -> Any:
            raise torch._dynamo.exc.Unsupported("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    net = nn.Linear(4, 2)
    before = net.weight.detach().clone()
    estimator = MultiEstimator(net, nn.CrossEntropyLoss(), compile=True)
    estimator.fit([(torch.ones(3, 4), torch.tensor([0, 1, 1]))] * 2, event_handlers=[], epochs=1)
    assert not torch.equal(net.weight, before)
    assert [each for each in caplog.messages if "compile=True: the net runs uncompiled: " in each]
