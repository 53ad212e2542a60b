"""A plan, a history and a run's folder that holds them."""

import json
from pathlib import Path

from multifit.handlers.history import History
from multifit.spec.plan import Link, Plan, Row, StagePlan, TrainerPlan

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"

ROWS = (
    Row("input", "image", "(8, 4) float32", "net"),
    Row("output", "digit", "(8, 10) float32", "digit, accuracy"),
    Row("output", "spare", "(8, 2) float32", "unused"),
    Row("label", "digit", "(8,) int32", "digit, accuracy"),
    Row("loss", "digit", "(8,) float32", "1 x CrossEntropy(outputs.digit, labels.digit) / image"),
    Row("part", "digit.sum", "(8,) float32", "minimised"),
    Row("metric", "accuracy", "top1, top5", "Accuracy(outputs.digit, labels.digit)"),
    Row("metric", "mean", "mean", "Loss(digit), on the device"),
)  # fmt: skip
LINKS = (
    Link("output", "digit", "loss", "digit", "feeds"),
    Link("label", "digit", "loss", "digit", "feeds"),
    Link("input", "image", "loss", "digit", "normalises"),
    Link("output", "digit", "metric", "accuracy", "feeds"),
    Link("label", "digit", "metric", "accuracy", "feeds"),
    Link("loss", "digit", "metric", "mean", "feeds"),
)
STAGE = StagePlan(ROWS, "the net, 3 losses and metrics are one graph", LINKS)
TRAINERS = (
    TrainerPlan("body", "Adam", 0.001, ("body.0.weight", "body.0.bias"), 44),
    TrainerPlan("head", "SGD", 0.1, ("head.weight",), 10, clip_norm=5.0),
)
PLAN = Plan(("cpu(0)", "cpu(1)"), 8, STAGE, STAGE, TRAINERS, ("frozen.weight",), ("a default was used",))
HISTORY = History(
    {
        "train_loss": [2.0, 1.0],
        "val_loss": [2.5, 1.5],
        "train_accuracy.top1": [0.25, 0.5],
        "lr_body": [0.001, 0.001],
    }
)


def write_run(folder: Path, **settings: object) -> Path:
    """Write a run's files, with settings added to those it has."""
    folder.mkdir()
    (folder / "plan.txt").write_text(f"{PLAN}\n")
    (folder / "plan.json").write_text(json.dumps(PLAN.to_dict()))
    HISTORY.to_json(folder / "history.json")
    record = {
        "file": "digits.py",
        "settings": {"rate": 0.1, **settings},
        "seed": 3,
        "devices": ["cpu(0)", "cpu(1)"],
        "versions": {"mxnet": "1.9.1"},
    }
    (folder / "settings.json").write_text(json.dumps(record))
    for picture in ("samples", "curves", ".half"):
        (folder / f"{picture}.png").write_bytes(PNG)
    return folder
