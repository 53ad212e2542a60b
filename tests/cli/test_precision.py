"""``--precision``, and the setting of that name; a run keeps its precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HYBRID = {"return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net"}
SETTING = {"epochs = 2\n": 'epochs = 2\nprecision = "bfloat16"\n'}


def recorded() -> str:
    return json.loads(Path("runs/small/settings.json").read_text())["precision"]


def planned() -> str:
    return json.loads(Path("runs/small/plan.json").read_text())["precision"]


def test_the_precision_of_the_command_line(write, multifit):
    result = multifit("train", write(**HYBRID), "--precision", "bfloat16")
    assert result.code == 0 and result.out.count(", computed in bfloat16") == 1
    assert recorded() == planned() == "bfloat16"
    assert result.out.count("note: precision: bfloat16") == 1


def test_the_precision_of_the_file(write, multifit):
    path = write(**HYBRID, **SETTING)
    assert multifit("train", path, "--quiet").code == 0 and planned() == recorded() == "bfloat16"
    assert "computed in bfloat16" in multifit("check", path).out
    assert multifit("train", path, "--quiet", "--precision", "float32").code == 0
    assert planned() == recorded() == "float32"
    assert (
        multifit("train", path, "--quiet", "--set", "precision=float32").code == 0 and planned() == "float32"
    )


def test_the_files_functions_may_take_it(write, multifit):
    path = write(
        **HYBRID, **{"def trainers(net):": "def trainers(net, precision):\n    print('in', precision)"}
    )
    assert "in bfloat16" in multifit("train", path, "--precision", "bfloat16", "--quiet").out
    assert "in float32" in multifit("train", path, "--quiet").out


def test_a_trained_run_is_evaluated_in_its_precision(write, multifit):
    path = write(**HYBRID)
    multifit("train", path, "--quiet", "--precision", "bfloat16")
    last = json.loads(Path("runs/small/history.json").read_text())["val_loss"][-1]

    def loss(*options: str) -> float:
        out = multifit("evaluate", path, "--from", "runs/small", "--quiet", *options).out
        return float(dict(line.split() for line in out.strip().split("\n"))["loss"])

    assert loss() == float(f"{last:.6g}") != loss("--precision", "float32")


def test_a_run_resumes_in_its_precision(write, multifit):
    path = write(**HYBRID)
    train = ("train", path, "--quiet", "--checkpoint-every", "1epochs")
    multifit(*train, "--precision", "bfloat16")
    assert multifit(*train, "--resume", "--epochs", 3).code == 0 and planned() == "bfloat16"
    refused = multifit(*train, "--resume", "--epochs", 4, "--precision", "float32")
    assert refused.code == 1 and "precision bfloat16 in the checkpoint, float32 here" in refused.err


def test_a_record_without_precision_means_float32(trained, multifit):
    record = Path("runs/small/settings.json")
    facts = json.loads(record.read_text())
    assert facts.pop("precision") == "float32"
    record.write_text(json.dumps(facts))
    assert multifit("evaluate", trained, "--from", "runs/small", "--quiet").code == 0
    resumed = multifit("train", trained, "--quiet", "--resume", "--epochs", 3)
    assert resumed.code == 0 and recorded() == "float32"


@pytest.mark.parametrize("how", [{"--precision": "bfloat"}, {"--set": "precision=bfloat"}])
def test_an_unknown_precision_is_an_error(write, multifit, how):
    result = multifit("train", write(**HYBRID, **SETTING), *next(iter(how.items())))
    assert result.code == 2 and "precision is 'bfloat' (did you mean \"bfloat16\"?)" in result.err


def test_float16_is_an_error(write, multifit):
    result = multifit("train", write(**HYBRID), "--precision", "float16")
    assert result.code == 2 and 'valid are "float32", "bfloat16"' in result.err
