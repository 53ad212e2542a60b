"""DCGAN: a short training, and the judge. The nightly table has the score of a whole training."""

import json

import numpy as np

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, predict, train

FILE = TASKS / "dcgan.py"


def test_a_short_training(tmp_path, capsys):
    history = train(FILE, tmp_path, "epochs=1", "batch_size=128", "width=4", "generator_every=2")
    assert 0.09 < history["val_score"][-1] <= 1
    fool, real, made = (history[f"train_{name}"][-1] for name in ("fool", "real", "made"))
    np.testing.assert_allclose(history["train_loss"][-1], fool + real + made, rtol=1e-4)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert {trainer["name"]: trainer["every"] for trainer in plan["trainers"]} == {
        "generator": 2,
        "discriminator": 1,
    }
    assert (tmp_path / "samples.png").stat().st_size > 10_000
    predict(FILE, tmp_path, capsys, "3", "4")
    assert {path.name for path in (tmp_path / "predictions").iterdir()} == {"1-3.png", "2-4.png"}


def test_the_judge_prefers_digits():
    module = TaskFile(FILE).module
    images, digit = module.digits()
    score = module.judge()
    random = np.random.RandomState(0)
    assert score(None, images[:300]) > 0.95  # it knows them
    assert score(None, images[digit == 3]) < 0.15  # one kind
    assert score(None, random.uniform(-1, 1, (300, 64))) < 0.5
