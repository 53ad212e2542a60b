"""``--precision``, and the setting of that name: what a run was trained in is what it goes on in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HYBRID = {"return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net"}
SETTING = {"epochs = 2\n": 'epochs = 2\nprecision = "bfloat16"\n'}


def kept() -> str:
    return json.loads(Path("runs/small/settings.json").read_text())["precision"]


def planned() -> str:
    return json.loads(Path("runs/small/plan.json").read_text())["precision"]


def test_the_command_line_says_it(write, multifit):
    result = multifit("train", write(**HYBRID), "--precision", "bfloat16")
    assert result.code == 0 and result.out.count(", computed in bfloat16") == 1
    assert kept() == planned() == "bfloat16"
    assert result.out.count("note: precision: bfloat16") == 1


def test_the_file_says_it(write, multifit):
    path = write(**HYBRID, **SETTING)
    assert multifit("train", path, "--quiet").code == 0 and planned() == kept() == "bfloat16"
    assert "computed in bfloat16" in multifit("check", path).out
    assert multifit("train", path, "--quiet", "--precision", "float32").code == 0
    assert planned() == kept() == "float32"
    assert (
        multifit("train", path, "--quiet", "--set", "precision=float32").code == 0 and planned() == "float32"
    )


def test_the_files_functions_may_ask_for_it(write, multifit):
    path = write(
        **HYBRID, **{"def trainers(net):": "def trainers(net, precision):\n    print('in', precision)"}
    )
    assert "in bfloat16" in multifit("train", path, "--precision", "bfloat16", "--quiet").out
    assert "in float32" in multifit("train", path, "--quiet").out


def test_a_finished_run_is_measured_as_it_was_trained(write, multifit):
    path = write(**HYBRID)
    multifit("train", path, "--quiet", "--precision", "bfloat16")
    last = json.loads(Path("runs/small/history.json").read_text())["val_loss"][-1]

    def loss(*options: str) -> float:
        out = multifit("evaluate", path, "--from", "runs/small", "--quiet", *options).out
        return float(dict(line.split() for line in out.strip().split("\n"))["loss"])

    assert loss() == float(f"{last:.6g}") != loss("--precision", "float32")


def test_a_run_goes_on_in_its_precision(write, multifit):
    path = write(**HYBRID)
    train = ("train", path, "--quiet", "--checkpoint-every", "1epochs")
    multifit(*train, "--precision", "bfloat16")
    assert multifit(*train, "--resume", "--epochs", 3).code == 0 and planned() == "bfloat16"
    refused = multifit(*train, "--resume", "--epochs", 4, "--precision", "float32")
    assert refused.code == 1 and "precision bfloat16 in the checkpoint, float32 here" in refused.err


def test_a_run_of_before_there_was_a_choice_is_one_of_float32(write, multifit):
    path = write(**HYBRID)
    multifit("train", path, "--quiet")
    record = Path("runs/small/settings.json")
    facts = json.loads(record.read_text())
    assert facts.pop("precision") == "float32"
    record.write_text(json.dumps(facts))
    assert multifit("evaluate", path, "--from", "runs/small", "--quiet").code == 0
    assert multifit("train", path, "--quiet", "--resume", "--epochs", 3).code == 0 and kept() == "float32"


@pytest.mark.parametrize("how", [{"--precision": "bfloat"}, {"--set": "precision=bfloat"}])
def test_one_that_there_is_not_is_told_at_once(write, multifit, how):
    result = multifit("train", write(**HYBRID, **SETTING), *next(iter(how.items())))
    assert result.code == 2 and "precision is 'bfloat' (did you mean \"bfloat16\"?)" in result.err


def test_float16_is_an_error(write, multifit):
    result = multifit("train", write(**HYBRID), "--precision", "float16")
    assert result.code == 2 and 'valid are "float32", "bfloat16"' in result.err
