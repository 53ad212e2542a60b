"""Every task trains for moments, draws and predicts on the command line; nightly/ trains them whole."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer

from multifit.cli import main

TASKS = Path(__file__).parents[2] / "tasks"
PICTURE = "any.png"  # noise, as an input of `predict`
Bounds = tuple[float, float]


class Training(NamedTuple):
    """What a task is trained with, and what must be true afterwards.

    `figures` are bounds of the last figures. `parts` are losses and their weights, which add up to the loss.
    The last value of each of `learning` is better than the first one. `plan` has what the plan says.
    All answers to the `inputs` of `predict` match `answers`; if it is empty, they are pictures.
    """

    task: str
    settings: str
    figures: Mapping[str, Bounds] = {}
    parts: Mapping[str, float] = {}
    learning: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    answers: str = ""
    plan: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


SHARE, FALLEN = (0, 1), (0, 1e-9)
IMAGES = "epochs=1 train_count=4 val_count=2 batch_size=2"
SENTENCES = "epochs=1 train_count=4 val_count=2 batch_size=1 length=12 word_units=4 hidden_units=4"
PAIRS = "epochs=1 train_count=5 val_count=3 batch_size=2 units=8 beam=2"
PER_TOKEN = (0.7 * math.log(15), 1.3 * math.log(15))  # of some 15 words
CASES = load_breast_cancer()
TWO = ("--devices", "2")
TRAININGS = (
    Training(
        "augmentation", "epochs=1 train_patches=4 val_patches=4 batch_size=2",
        {"val_accuracy": SHARE, "lr": (0, 0.0499)}, pictures=("augmented", "confusion_kind"),
        inputs=(PICTURE,), answers=r"(temple|flower) \(\d\.\d\d\)",
    ),
    Training(
        "cells", "epochs=3", {"val_diagnosis_accuracy": (0.85, 1), "val_texture_r2": (-9, 1)},
        learning=("-train_loss", "val_texture_r2"),
    ),
    Training(
        "cells", "epochs=1 method=UPGrad", {"val_symmetry_r2": (-9, 1), "train_weight_symmetry": (0, 9)},
        plan=('tasks share 2 parameters and branch at 1 array; shared: "experts.weight", "experts.bias"',),
    ),
    Training(
        "classification", "epochs=1 model=mlp",
        {"val_accuracy": (0.6, 1), "val_top3": (0.8, 1)},
        inputs=(PICTURE,), answers=r"\d \((0\.[1-9]\d*|1\.0+)\)",
    ),
    Training(
        "dcgan", "epochs=1 batch_size=128 width=4 generator_every=2", {"val_score": (0.09, 1)},
        {"fool": 1, "real": 1, "made": 1}, pictures=("samples",), inputs=("3", "4"),
        plan=("every 2 batches",),
    ),
    Training(
        "detection", f"{IMAGES} size=64 base=tiny dataset=shapes",
        {"val_VOC.mAP": SHARE, "lr": (0.9e-4, 1.1e-4)},  # it falls after the first of two steps
        {"multibox.cls": 1, "multibox.box": 1}, pictures=("samples",), inputs=(PICTURE,), options=TWO,
    ),
    Training(
        "diabetes", "epochs=3 method=DWA",
        {"train_coverage_pressure": (0.5, 0.7), "val_coverage_pressure": (1, 1), "val_pressure_r2": (-9, 1),
         "train_weight_pressure": (0, 9)},
        learning=("-train_progression",),
    ),
    Training("diabetes", "epochs=1 keep=complete", {"train_coverage_pressure": (1, 1)}),
    Training(
        "digits", "epochs=2",
        # The ink is standardised: always predicting the mean has an error of 0.79.
        {"val_digit_accuracy": (0.8, 1), "val_parity_accuracy": (0.8, 1), "val_ink_error": (0, 0.7),
         "lr_body": (2e-3, 2e-3), "lr_heads": (5e-3, 5e-3)},
        {"digit": 1, "parity": 0.5, "ink": 0.5},
        pictures=("samples",),
    ),
    Training(
        "few_digits", "epochs=1 few=40 batch_size=64",
        {"train_batches_digit": (6, 6), "train_batches_parity": (17, 17), "train_passes_digit": (6, 6),
         "train_passes_parity": SHARE, "val_parity_accuracy": (0.6, 1)},
    ),
    Training(
        "few_digits", "epochs=1 joint=True batch_size=256",
        {"train_batches_digit": (6, 6), "train_batches_parity": (6, 6), "val_digit_accuracy": SHARE},
    ),
    Training(
        "language", "epochs=1 units=16 rarest=40 length=70", {"val_text.saved": (-9, 1)},
        inputs=("the value of the", "x = "), answers="(, .*){4}",
        plan=("output hidden (1, 20, 16) float32 the next batch",),
    ),
    Training(
        "logistic_regression", "epochs=8", {"val_accuracy": (0.95, 1), "val_f1": (0.95, 1)},
        pictures=("confusion_kind", "weights"),
        inputs=tuple(",".join(map(str, CASES.data[i])) for i in (0, 1)), answers="malignant",
    ),
    Training(
        "scenes", f"{IMAGES} size=64 segmentation_weight=2",
        {"val_detection/VOC.mAP": SHARE, "val_segmentation/seg.mIoU": SHARE, "val_count/accuracy": SHARE},
        {"segmentation/pixels": 2, "detection/multibox": 1, "count/count": 1},
        pictures=("scenes",), inputs=(PICTURE,), options=TWO,
    ),
    Training(
        "segmentation", f"{IMAGES} size=64 dataset=scenes", {"val_seg.mIoU": SHARE, "lr": FALLEN},
        pictures=("samples",), inputs=(PICTURE,), options=TWO,
    ),
    Training(
        "sentiment", f"{SENTENCES} model=birnn", {"val_accuracy": SHARE},
        pictures=("confusion_mood", "misread"),
        inputs=("The film was not bad!", "words nobody knows", ""),
        answers=r"(positive|negative) \(\d+\.\d%\)",
    ),
    Training("sentiment", f"{SENTENCES} model=textcnn", {"val_accuracy": SHARE}, options=TWO),
    Training(
        "translation", PAIRS,
        {"val_bleu": SHARE, "train_loss": PER_TOKEN, "lr_encoder": FALLEN, "lr_decoder": FALLEN},
        pictures=("attention",), inputs=("three hundred and two", "no such word"), answers=".*",
    ),
    Training(
        "translation", f"{PAIRS} model=transformer", {"val_bleu": SHARE, "train_loss": PER_TOKEN},
        pictures=("attention",), options=TWO,
    ),
    Training(
        "two_digits", "train_count=256 val_count=64 epochs=2 method=UPGrad",
        {f"train_weight_{name}": (0, 99) for name in ("left", "right", "sum")}, learning=("-train_loss",),
    ),
)  # fmt: skip


@pytest.mark.parametrize("training", TRAININGS, ids=lambda each: f"{each.task} {each.settings}"[:40])
def test_a_task_trains_draws_and_predicts(training, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # The command's own drawings take most of the time; tests/cli has them.
    monkeypatch.setattr("multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1)))
    monkeypatch.setattr("multifit.cli.task.run_plots", lambda estimator, data: {})
    file = str(TASKS / f"{training.task}.py")
    options = [*training.options, "--set", *training.settings.split()]
    assert main(["train", file, "--output", "run", "--quiet", *options]) == 0
    history = json.loads(Path("run/history.json").read_text())
    check_figures(training, history)
    plan = " ".join(Path("run/plan.txt").read_text().split())
    assert all(line in plan for line in training.plan)
    assert all(Path(f"run/{name}.png").stat().st_size > 5_000 for name in training.pictures)
    if training.inputs:
        random = np.random.RandomState(0).randint(0, 256, (50, 40, 3), "uint8")
        cv2.imwrite(PICTURE, random)
        capsys.readouterr()
        assert main(["predict", file, "--from", "run", "--quiet", *training.inputs]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(training.inputs)
        for line in lines:
            answer = line.split(": ")[-1]
            assert re.search(training.answers, answer) if training.answers else is_drawn(answer)


def test_each_task_is_trained():
    """Those of PyTorch's modules are, in tests/torch."""
    of_gluon = {path.stem for path in TASKS.glob("*.py") if not path.stem.startswith("torch_")}
    assert {each.task for each in TRAININGS} == of_gluon


def check_figures(training: Training, history: Mapping[str, Any]) -> None:
    assert np.isfinite([history[name] for name in history if name.endswith("_loss")]).all()
    for name, (low, high) in training.figures.items():
        assert low <= history[name][-1] <= high, name
    assert any(name.startswith("train_weight_") for name in history) == ("method=" in training.settings)
    parts = sum(weight * history[f"train_{name}"][-1] for name, weight in training.parts.items())
    assert not training.parts or history["train_loss"][-1] == pytest.approx(parts, rel=1e-4)
    for name in training.learning:
        first, last = (history[name.lstrip("-")][at] for at in (0, -1))
        assert (last < first) == name.startswith("-")


def is_drawn(path: str) -> bool:
    return Path(path).stat().st_size > 500
