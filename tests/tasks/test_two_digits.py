"""Two digits: short trainings with a method of balancing."""

from .commands import TASKS, train

FILE = TASKS / "two_digits.py"
SMALL = ("train_count=256", "val_count=64", "epochs=2")


def test_tasks_are_weighed(tmp_path):
    history = train(FILE, tmp_path, *SMALL, "method=UPGrad")
    assert {f"train_weight_{task}" for task in ("left", "right", "sum")} <= set(history)
    assert history["train_loss"][1] < history["train_loss"][0]
