"""Exported nets compute what the net computes in evaluation mode, for batches of other sizes, too."""

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multifit.torch.export as exporting
from multifit import LossSpec, MultiEstimator, SpecError, TaskSpec

from .nets import BODIES, assert_equal_parameters, columns, heads, loader, spec_of_heads

X = columns()[0]


def estimator_of(net: Any, inputs: Any = ("x",), **options: Any) -> MultiEstimator:
    losses = {"o": LossSpec(torch.sum, "o")}
    return MultiEstimator(net, TaskSpec(inputs=inputs, outputs=["o"], losses=losses, **options))


def program_of(folder: Path) -> Any:
    return torch.export.load(folder / "net.pt2").module()


@pytest.mark.parametrize("body", BODIES)
def test_parameters_are_written_with_the_names_of_inputs_and_outputs(body: str, tmp_path: Path) -> None:
    net, other = heads(body), heads(body, seed=1)
    files = MultiEstimator(net, spec_of_heads()).export(tmp_path / "new" / "folder", loader(), format="torch")
    assert [file.name for file in files] == sorted(os.listdir(tmp_path / "new" / "folder"))
    other.load_state_dict(torch.load(files[1], weights_only=True))
    assert_equal_parameters(net, other, 0)
    record = json.loads(files[0].read_text("utf-8"))
    assert record["inputs"] == [{"name": "x", "shape": [None, 6], "dtype": "float64"}]
    assert [each["name"] for each in record["outputs"]] == ["kind", "size"]
    assert record["format"] == "torch" and record["versions"]["torch"] == torch.__version__
    assert record["sha256"] == {"net.pt": exporting.sha256(files[1])}


def test_parameters_need_no_batch(tmp_path: Path) -> None:
    record, _ = MultiEstimator(heads(), spec_of_heads()).export(tmp_path, format="torch")
    assert json.loads(record.read_text("utf-8"))["inputs"] == [{"name": "x"}]
    with pytest.raises(ValueError, match='the shapes of the inputs "x" are not known; fit, check or'):
        MultiEstimator(heads("lazy"), spec_of_heads()).export(tmp_path, format="torch")


def test_a_program_takes_batches_of_any_size(tmp_path: Path) -> None:
    net = heads("batch normalisation")
    estimator = MultiEstimator(net, spec_of_heads())
    estimator.evaluate(loader())
    assert [file.name for file in estimator.export(tmp_path, format="pt2")] == ["net.pt2"]
    assert net.training
    program, wanted, extra = program_of(tmp_path), estimator.predict(X), {"export.json": ""}
    for size in (20, 3, 1):
        found = {name: each.detach().numpy() for name, each in program(X[:size]).items()}
        assert list(found) == ["kind", "size"]
        for name, array in found.items():
            np.testing.assert_allclose(array, wanted[name][:size], rtol=1e-10, atol=1e-12)
    torch.export.load(tmp_path / "net.pt2", extra_files=extra)
    assert json.loads(extra["export.json"])["inputs"][0]["shape"] == [None, 6]


class Words(nn.Module):
    """The mean of the words' vectors, and a mask that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)

    def forward(self, words: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        vectors = self.embed(words)
        return {"o": vectors.mean(1) if mask is None else (vectors * mask[:, :, None]).mean(1)}


@pytest.mark.parametrize("masked", [True, False])
def test_axes_whose_size_differed_are_open(masked: bool, tmp_path: Path) -> None:
    net = Words()
    estimator, sizes = estimator_of(net, ["words", "mask"]), [(2, 3), (2, 4), (1, 7)]
    estimator.predict([(torch.ones(size).long(), torch.ones(size) if masked else None) for size in sizes])
    estimator.export(tmp_path, format="pt2")
    given = (torch.tensor([[0, 1, 2, 3, 4]] * 3), *([torch.ones(3, 5)] if masked else []))
    torch.testing.assert_close(program_of(tmp_path)(*given)["o"], net(*given)["o"])


def test_a_forward_function_is_exported(tmp_path: Path) -> None:
    net = nn.Linear(6, 2)
    estimator = estimator_of(net, forward=lambda net, slots: [net(slots["x"]) + 1])
    estimator.export(tmp_path, X.float(), format="pt2")
    torch.testing.assert_close(program_of(tmp_path)(X[:5].float())["o"], net(X[:5].float()) + 1)


class Flat(nn.Module):
    """Computes with a size that it takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), -1) if x.shape[0] == 4 else x


def test_a_program_of_one_size_is_logged(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "multifit"):
        estimator_of(Flat()).export(tmp_path, torch.ones(4, 3), format="pt2")
    assert 'takes batches of these sizes only: "x" (4, 3), because torch.export fixed them' in caplog.text


def test_onnx(tmp_path: Path, monkeypatch: Any) -> None:
    def export(program: Any, **options: Any) -> Any:
        assert options == {"input_names": ["x"], "output_names": ["kind", "size"], "verbose": False}
        assert program.module()(X.float())["kind"].shape == (20, 3)
        return SimpleNamespace(model_proto=SimpleNamespace(SerializeToString=lambda: b"model"))

    estimator = MultiEstimator(heads().float(), spec_of_heads())
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ImportError, match="needs onnxscript: pip install onnx onnxscript"):
        estimator.export(tmp_path, loader(), format="onnx")
    monkeypatch.setattr(exporting, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.onnx, "export", export)
    assert estimator.export(tmp_path, loader(), format="onnx") == [tmp_path / "net.onnx"]
    assert (tmp_path / "net.onnx").read_bytes() == b"model"


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(np.asarray(x).sum())  # leaves torch


REFUSED: dict[str, tuple[Any, Any, str, str]] = {
    "gluon": (nn.Linear(6, 2), X, "gluon", 'format="gluon" is for Gluon nets; valid for a PyTorch net are'),
    "no shapes": (nn.Linear(6, 2), None, "pt2", 'the shapes of the inputs "x" are not known'),
    "leaves torch": (Sums(), torch.ones(4, 3), "pt2", "torch.export failed ("),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    net, data, format, found = REFUSED[case]
    with pytest.raises(ValueError) as raised:
        estimator_of(net).export(tmp_path, data, format=format)
    assert found in str(raised.value) and not os.listdir(tmp_path)


def test_a_net_that_no_longer_returns_the_outputs(tmp_path: Path) -> None:
    net = nn.Identity()
    estimator = estimator_of(net)
    estimator.predict(torch.ones(4, 3))
    net.forward = lambda x: {"p": x, "q": x}  # type: ignore[method-assign]
    with pytest.raises(SpecError, match="the net that is exported"):
        estimator.export(tmp_path, format="pt2")


def test_state_is_in_no_program(tmp_path: Path) -> None:
    def forward(net: Any, slots: Any) -> tuple[Tensor, Tensor]:
        return (slots["x"] + slots["t"],) * 2

    names, losses = ["o", "t"], {"o": LossSpec(torch.sum, "o")}
    spec = TaskSpec(inputs=["x", "t"], outputs=names, losses=losses, state={"t": (0, 3)}, forward=forward)
    estimator = MultiEstimator(nn.Identity(), spec)
    with pytest.raises(SpecError, match='export: "t" come from the previous batch'):
        estimator.export(tmp_path, torch.ones(2, 3), format="pt2")
    assert len(estimator.export(tmp_path, torch.ones(2, 3), format="torch")) == 2
