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


BLOCK = type("Block", (), {"__module__": "mxnet.gluon.block"})
SCRIPT = torch.jit.script(nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("net", "library"), [(Net(2, 1), "torch"), (SCRIPT, "torch"), (type("Own", (BLOCK,), {})(), "mxnet")]
)
def test_a_net_is_known_by_its_classes(net: Any, library: str) -> None:
    assert library_of(net) == library


@pytest.mark.parametrize("context", [None, "cpu", "cuda:0", torch.device("cpu")])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_a_module_runs_with_torch(engine: str, context: Any) -> None:
    assert choose_engine(engine, context, pytest.fail, "torch") == "torch"
    assert engine_module("torch", "torch").__name__ == registry.NATIVE


NO_NET = r"not a torch.nn.Module or gluon.Block; give the net itself, an"
# fmt: off
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a class": (Net, {}, NO_NET),
    "None": (None, {}, NO_NET),
    "a function": (lambda x: x, {}, NO_NET),
    "a class, by engine": (Net, {"engine": "torch"}, r"net is \S.*, not a torch.nn.Module"),
    "mxnet": (Net(2, 1), {"engine": "mxnet"},
        'engine="mxnet" runs Gluon nets, not a torch.nn.Module; leave engine'),
    "an initializer": (Net(2, 1), {"initializer": object()},
        r"initializer= is for Gluon nets, .* torch.nn.init, such as in net.apply"),
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_does_not_run_is_refused(name: str) -> None:
    net, options, message = REFUSED[name]
    with pytest.raises(SpecError if NO_NET in message or "net is" in message else ValueError, match=message):
        MultiEstimator(net, nn.MSELoss(), **options)


@pytest.mark.parametrize("name", ["bfloat", torch.float16, None])
def test_a_precision_that_there_is_not(name: Any) -> None:
    with pytest.raises(ValueError, match='precision is .*; valid are "float32", "bfloat16" or "float16"|"'):
        precision_name(name)


IMPORTS = {
    "import torch": "torch",
    "from torch import nn": "torch",
    "from torch.nn import Linear": "torch",
    "import torch\nClass = type('C', (), {'__module__': 'mxnet.gluon.nn'})": "mxnet",
    "": "mxnet",
}


@pytest.mark.parametrize("code", IMPORTS)
def test_the_library_of_a_file_is_what_it_imports(code: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Where net() needs the context, so that it is not known by the net."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"of_{[*IMPORTS].index(code)}.py"
    path.write_text(f"def net(context): 0\ndef spec(): 0\ndef data(net): 0\n{code}\n")
    file = TaskFile(path)
    assert file.library == IMPORTS[code]
    needs = [file.needs(function, "context") for function in ("net", "data", "spec")]
    assert needs == [True, True, False]


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
    command = [sys.executable, "-c", NEEDED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    texts = done.stdout.splitlines()
    assert len(texts) == 2 and texts[0].startswith('engine="mxnet" cannot be imported: Gluon nets need mxnet')
    assert all("which is not installed: pip install mxnet==1.9.1" in text for text in texts)


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
