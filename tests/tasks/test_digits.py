"""Digits: a short training of three heads. The nightly table has the accuracies of a whole one."""

import pytest

from .commands import TASKS, train


def test_a_short_training(tmp_path):
    history = train(TASKS / "digits.py", tmp_path, "epochs=2")
    last = {name: values[-1] for name, values in history.items()}
    assert last["val_digit_accuracy"] > 0.8 and last["val_parity_accuracy"] > 0.8  # it has learnt something
    # The ink is standardised: always predicting the mean has an error of 0.79.
    assert last["val_ink_error"] < 0.7
    for stage in ("train", "val"):
        parts = {name: last[f"{stage}_{name}"] for name in ("digit", "parity", "ink")}
        expected = parts["digit"] + 0.5 * parts["parity"] + 0.5 * parts["ink"]
        assert last[f"{stage}_loss"] == pytest.approx(expected, rel=1e-4)
    assert (last["lr_body"], last["lr_heads"]) == (2e-3, 5e-3)
    assert {path.name for path in tmp_path.iterdir()} == {
        "history.json", "plan.txt", "plan.json", "final.params", "settings.json", "log.txt", "checkpoints",
        "tensorboard", "curves.png", "samples.png", "confusion_digit.png", "confusion_parity.png",
            "scatter_ink.png",
    }  # fmt: skip
    assert (tmp_path / "samples.png").stat().st_size > 20_000
