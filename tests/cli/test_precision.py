"""``--precision``, and a task file's setting of that name: a run continues in its own precision.

"float16" stands for a lower precision that every CPU can compute; see the fixture `float16_activations`.
"""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("float16_activations")

HYBRID = {
    "return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net",
    "nn.Dense(1)": 'nn.Dense(1, activation="tanh")',
}
SETTING = {"epochs = 2\n": 'epochs = 2\nprecision = "float16"\n'}


def recorded() -> str:
    """Return the precision of the last run, which its settings and its plan agree on."""
    settings, plan = (
        json.loads(Path(f"runs/small/{name}.json").read_text()) for name in ("settings", "plan")
    )
    assert settings["precision"] == plan["precision"]
    return plan["precision"]


@pytest.mark.parametrize("precision", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_the_option_sets_it(write, multifit, precision):
    result = multifit("train", write(**HYBRID), "--precision", precision)
    assert result.code == 0 and result.out.count(f", computed in {precision}") == 1
    assert result.out.count(f"note: precision: {precision}") == 1 and recorded() == precision


def test_the_file_sets_it_and_options_override_it(write, multifit):
    path = write(**HYBRID, **SETTING)
    assert multifit("train", path, "--quiet").code == 0 and recorded() == "float16"
    assert "computed in float16" in multifit("check", path).out
    for option in (["--precision", "float32"], ["--set", "precision=float32"]):
        assert (
            multifit("train", path, "--quiet", "--overwrite", *option).code == 0 and recorded() == "float32"
        )


def test_the_functions_of_the_file_can_take_it(write, multifit):
    taking = {"def trainers(net):": "def trainers(net, precision):\n    print('in', precision)"}
    path = write(**HYBRID, **taking)
    assert "in float16" in multifit("train", path, "--precision", "float16", "--quiet").out
    assert "in float32" in multifit("train", path, "--quiet", "--overwrite").out


def test_a_finished_run_is_evaluated_in_its_precision(write, multifit):
    path = write(**HYBRID)
    multifit("train", path, "--quiet", "--precision", "float16")
    last = json.loads(Path("runs/small/history.json").read_text())["val_loss"][-1]

    def loss(*options: str) -> float:
        out = multifit("evaluate", path, "--from", "runs/small", "--quiet", *options).out
        return float(dict(line.split() for line in out.strip().split("\n"))["loss"])

    assert loss() == float(f"{last:.6g}") != loss("--precision", "float32")


def test_a_run_resumes_in_its_precision(write, multifit):
    train = ("train", write(**HYBRID), "--quiet", "--checkpoint-every", "1epochs")
    multifit(*train, "--precision", "float16")
    assert multifit(*train, "--resume", "--epochs", 3).code == 0 and recorded() == "float16"
    result = multifit(*train, "--resume", "--epochs", 4, "--precision", "float32")
    assert result.code == 1 and 'precision: "float16" in the checkpoint, "float32" here' in result.err


@pytest.mark.parametrize("option", [["--precision", "bfloat"], ["--set", "precision=bfloat"]])
def test_an_unknown_precision_is_an_error(write, multifit, option):
    result = multifit("train", write(**HYBRID, **SETTING), *option)
    assert result.code == 2 and "precision is 'bfloat' (did you mean \"bfloat16\"?)" in result.err


def test_a_precision_that_the_cpu_lacks_is_an_error(write, multifit, monkeypatch):
    monkeypatch.setattr("multifit.gluon.precision.cpu_supports_bfloat16", lambda: False)
    result = multifit("train", write(**HYBRID), "--precision", "bfloat16")
    assert result.code == 1 and 'give precision="float32"' in result.err
    assert not Path("runs/small/final.params").exists()
