"""``--engine`` and ``--devices``: which engine runs a task file."""

import json
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from multifit.engines import registry

from .results import figures_of

HYBRID = {"return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net"}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def where() -> list[str]:
    """Return the devices that the last run's plan names."""
    devices: list[str] = json.loads(Path("runs/small/plan.json").read_text())["devices"]
    return devices


def test_mxnet(write, multifit):
    assert multifit("train", write(**HYBRID), "--engine", "mxnet", "--devices", "2", "--quiet").code == 0
    assert where() == ["cpu(0)", "cpu(1)"]


def record(**fields: object) -> dict[str, object]:
    """Return the record of the last run, after changing some fields."""
    path = Path("runs/small/settings.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("fields", "options", "engine"),
    [
        ({"engine": "mxnet"}, (), "mxnet"),
        ({"engine": "torch", "compile": True}, ("--engine", "mxnet"), "mxnet"),
    ],
)
def test_the_engine_is_that_of_the_run_unless_another_is_given(trained, multifit, fields, options, engine):
    record(**fields)
    assert multifit("evaluate", trained, "--from", "runs/small", *options).code == 0
    assert multifit("train", trained, "--resume", "--epochs", 3, *options).code == 0
    after = record()
    assert (after["engine"], after["compile"]) == (engine, "auto")


def test_an_engine_that_is_not_installed(trained, multifit, monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    given = ["check", trained, "--engine", "torch"], ["check", trained, "--devices", "cuda:0"]
    record(engine="torch")
    of_run = ["evaluate", trained, "--from", "runs/small"], ["train", trained, "--resume"]
    for arguments in (*given, *of_run):
        result = multifit(*arguments)
        assert result.code == 2 and 'engine="torch" needs PyTorch' in result.err


@needs_torch
def test_a_run_goes_on_with_torch(write, multifit):
    """And bit for bit as if it had not stopped."""
    path, options = write(**HYBRID), ["--engine", "torch", "--checkpoint-every", "1epochs"]
    assert multifit("train", path, *options, "--epochs", 3, "--output", "whole").code == 0
    assert multifit("train", path, *options, "--epochs", 2).code == 0
    assert multifit("train", path, "--resume", "--epochs", 3).code == 0
    assert where() == ["cpu (torch)"] and record()["engine"] == "torch"
    assert record()["versions"]["torch"] == version("torch")
    assert Path("runs/small/final.params").read_bytes() == Path("whole/final.params").read_bytes()
    of_torch, of_mxnet = (
        multifit("evaluate", path, "--from", "runs/small", "--engine", engine, "--quiet").out
        for engine in ("torch", "mxnet")
    )
    assert figures_of(of_torch) == pytest.approx(figures_of(of_mxnet), rel=1e-4)
    assert multifit("export", path, "--from", "runs/small").code == 0


def test_deterministic_algorithms_are_those_of_the_run(write, multifit, monkeypatch):
    monkeypatch.setenv("MXNET_ENFORCE_DETERMINISM", "0")  # as it was, after the test
    for options in (["--deterministic"], ["--resume", "--epochs", 2]):
        os.environ["MXNET_ENFORCE_DETERMINISM"] = "0"
        assert multifit("train", write(), *options).code == 0
        assert os.environ["MXNET_ENFORCE_DETERMINISM"] == "1" and record()["deterministic"] is True


@needs_torch
def test_a_device_that_torch_lacks(write, multifit):
    result = multifit("train", write(), "--devices", "cuda:77")
    assert result.code == 2 and "'cuda:77' is not a PyTorch device" in result.err
    assert result.err.startswith("multifit: --devices cuda:77: ")


@needs_torch
def test_what_is_not_compiled_stays_so(write, multifit):
    path, options = write(**HYBRID), ("--engine", "torch", "--quiet")
    assert multifit("train", path, *options, "--compile", "no").code == 0
    assert record()["compile"] is False
    for more, expected in (((), False), (("--compile", "auto"), "auto")):
        assert multifit("train", path, "--resume", "--epochs", 3, "--quiet", *more).code == 0
        assert record()["compile"] == expected


@needs_torch
def test_compile(write, multifit):
    """A check compiles nothing, which takes a minute."""
    result = multifit("check", write(**HYBRID), "--engine", "torch", "--compile")
    assert result.code == 0 and "cpu (torch)" in result.out
