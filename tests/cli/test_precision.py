"""``--precision``, and a task file's setting of that name: a run continues in its own precision.

"float16" stands for a lower precision that every CPU can compute; see the fixture `float16_activations`.
"""

import json
from pathlib import Path

import pytest

from .results import figures_of, history_of, record_of

pytestmark = pytest.mark.usefixtures("float16_activations")

HYBRID = {
    "return TwoHeads()": "net = TwoHeads()\n    net.hybridize()\n    return net",
    "nn.Dense(1)": 'nn.Dense(1, activation="tanh")',
}
SETTING = {"epochs = 2\n": 'epochs = 2\nprecision = "float16"\n'}


def recorded() -> str:
    """Return the precision of the last run, which its settings and its plan agree on."""
    plan = json.loads(Path("runs/small/plan.json").read_text())
    assert record_of()["precision"] == plan["precision"]
    return plan["precision"]


def test_the_file_sets_it_and_options_override_it(write, multifit):
    path = write(**HYBRID, **SETTING)
    result = multifit("train", path)
    assert result.code == 0 and recorded() == "float16"
    assert result.out.count(", computed in float16") == 1
    assert result.out.count("note: precision: float16") == 1
    for option in (["--precision", "float32"], ["--set", "precision=float32"]):
        assert "computed in" not in multifit("check", path, *option).out


def test_a_run_is_evaluated_and_resumed_in_its_precision(write, multifit):
    path = write(**HYBRID)
    multifit("train", path, "--quiet", "--precision", "float16")
    last = history_of()["val_loss"][-1]

    def loss(*options: str) -> float:
        out = multifit("evaluate", path, "--from", "runs/small", "--quiet", *options).out
        return figures_of(out)["loss"]

    assert loss() == float(f"{last:.6g}") != loss("--precision", "float32")
    resume = "train", path, "--quiet", "--resume", "--epochs"
    assert multifit(*resume, 3).code == 0 and recorded() == "float16"
    result = multifit(*resume, 4, "--precision", "float32")
    assert result.code == 1 and 'precision: "float16" in the checkpoint, "float32" here' in result.err


def test_an_unknown_precision_is_an_error(write, multifit):
    result = multifit("train", write(**HYBRID, **SETTING), "--set", "precision=bfloat")
    assert result.code == 2 and "precision is 'bfloat' (did you mean \"bfloat16\"?)" in result.err
