"""``--engine``, ``--devices``, ``--precision``, ``--compile``, ``--deterministic``, and runs that have them.

"float16" stands for a lower precision that every CPU can compute; see the fixture `float16_activations`.
"""

import json
import os
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from .results import figures_of, history_of

HYBRID = {"return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net"}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")


def plan() -> dict[str, object]:
    return json.loads(Path("runs/small/plan.json").read_text())


def record(**fields: object) -> dict[str, object]:
    """Return the record of the last run, after changing some fields."""
    path = Path("runs/small/settings.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return json.loads(path.read_text())


def test_mxnet(write, multifit):
    assert multifit("train", write(**HYBRID), "--engine", "mxnet", "--devices", "2", "--quiet").code == 0
    assert plan()["devices"] == ["cpu(0)", "cpu(1)"]


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


def test_deterministic_algorithms_are_those_of_the_run(write, multifit, monkeypatch):
    monkeypatch.setenv("MXNET_ENFORCE_DETERMINISM", "0")  # as it was, after the test
    for options in (["--deterministic"], ["--resume", "--epochs", 2]):
        os.environ["MXNET_ENFORCE_DETERMINISM"] = "0"
        assert multifit("train", write(), *options).code == 0
        assert os.environ["MXNET_ENFORCE_DETERMINISM"] == "1" and record()["deterministic"] is True


@pytest.mark.usefixtures("float16_activations")
def test_a_run_is_evaluated_and_resumed_in_its_precision(write, multifit):
    activation = {"nn.Dense(1)": 'nn.Dense(1, activation="tanh")'}
    path = write(**HYBRID, **activation)
    result = multifit("train", path, "--precision", "float16")
    assert result.out.count(", computed in float16") == result.out.count("note: precision: float16") == 1
    assert record()["precision"] == plan()["precision"] == "float16"
    last = history_of()["val_loss"][-1]

    def loss(*options: str) -> float:
        out = multifit("evaluate", path, "--from", "runs/small", "--quiet", *options).out
        return figures_of(out)["loss"]

    assert loss() == float(f"{last:.6g}") != loss("--precision", "float32")
    resume = "train", path, "--quiet", "--resume", "--epochs"
    assert multifit(*resume, 3).code == 0 and record()["precision"] == "float16"
    result = multifit(*resume, 4, "--precision", "float32")
    assert result.code == 1 and 'precision: "float16" in the checkpoint, "float32" here' in result.err
    write(**HYBRID, **activation, **{"epochs = 2\n": 'epochs = 2\nprecision = "float16"\n'})
    for option in ([], ["--precision", "float32"], ["--set", "precision=float32"]):
        assert ("computed in float16" in multifit("check", path, *option).out) == (option == [])


@needs_torch
def test_a_run_goes_on_with_torch(write, multifit):
    """And bit for bit as if it had not stopped."""
    path, options = write(**HYBRID), ["--engine", "torch", "--checkpoint-every", "1epochs"]
    assert multifit("train", path, *options, "--epochs", 3, "--output", "whole").code == 0
    assert multifit("train", path, *options, "--epochs", 2).code == 0
    assert multifit("train", path, "--resume", "--epochs", 3).code == 0
    assert plan()["devices"] == ["cpu (torch)"] and record()["engine"] == "torch"
    assert record()["versions"]["torch"] == version("torch")
    assert Path("runs/small/final.params").read_bytes() == Path("whole/final.params").read_bytes()
    of_torch, of_mxnet = (
        multifit("evaluate", path, "--from", "runs/small", "--engine", engine, "--quiet").out
        for engine in ("torch", "mxnet")
    )
    assert figures_of(of_torch) == pytest.approx(figures_of(of_mxnet), rel=1e-4)
    assert multifit("export", path, "--from", "runs/small").code == 0


@needs_torch
def test_what_is_not_compiled_stays_so_and_a_check_compiles_nothing(write, multifit):
    """It would take a minute."""
    path, options = write(**HYBRID), ("--engine", "torch", "--quiet")
    result = multifit("check", path, "--engine", "torch", "--compile")
    assert result.code == 0 and "cpu (torch)" in result.out
    assert multifit("train", path, *options, "--compile", "no").code == 0 and record()["compile"] is False
    for more, expected in (((), False), (("--compile", "auto"), "auto")):
        assert multifit("train", path, "--resume", "--epochs", 3, "--quiet", *more).code == 0
        assert record()["compile"] == expected


@needs_torch
def test_a_device_that_torch_lacks(write, multifit):
    result = multifit("train", write(), "--devices", "cuda:77")
    assert result.code == 2 and "'cuda:77' is not a PyTorch device" in result.err
    assert result.err.startswith("multifit: --devices cuda:77: ")
