"""Which figures handlers show by default, and which by patterns."""

from __future__ import annotations

import pytest

from multifit.handlers.figure_choice import FigureChoice, key_figures
from multifit.spec import LossSpec, MetricSpec, TaskSpec

from .conftest import spec_of_two_tasks


def detection() -> TaskSpec:
    """Declare a net that has other outputs when evaluating, and a metric with a figure per class."""
    return TaskSpec(
        outputs=("classes", "boxes"),
        labels=["target"],
        losses={
            "box": LossSpec(max, outputs=["classes", "boxes"], labels="target", returns=("sum", "class"))
        },
        evaluate=TaskSpec(
            outputs="boxes",
            labels=["truth"],
            metrics={"VOC": MetricSpec(max, outputs="boxes", labels="truth")},
        ),
    )


def of_losses() -> TaskSpec:
    """Declare a metric that reads a loss."""
    return TaskSpec(
        outputs=("a", "b"),
        labels=["a", "b"],
        losses={"a": LossSpec(max, returns=("sum", "part"), minimize="sum"), "b": LossSpec(max)},
        metrics={"perplexity": MetricSpec(max, losses="a.part")},
    )


CASES: dict[str, tuple[TaskSpec, list[str], list[str]]] = {
    "a metric stands for its task, a loss for the other": (
        spec_of_two_tasks(),
        ["train_loss", "train_digit", "train_size", "train_accuracy", "lr", "val_accuracy", "val_digit"],
        ["train_loss", "train_accuracy", "train_size", "val_accuracy", "lr"],
    ),
    "without its metric, a task has its loss": (
        spec_of_two_tasks(),
        ["train_loss", "train_digit", "train_size"],
        ["train_loss", "train_digit", "train_size"],
    ),
    "a single loss is the objective, and the last of a metric's figures stands for all": (
        detection(),
        ["train_loss", "train_box", "train_box.class", "val_VOC.cat", "val_VOC.dog", "val_VOC.mAP"],
        ["train_loss", "val_VOC.mAP"],
    ),
    "tasks of a combined spec, in the order of its outputs": (
        TaskSpec.combine(detection=detection(), two=spec_of_two_tasks()),
        ["train_loss", "train_detection/box", "train_two/digit", "train_two/size", "train_two/accuracy"],
        ["train_loss", "train_detection/box", "train_two/accuracy", "train_two/size"],
    ),
    "a metric of a loss stands for its task": (
        of_losses(),
        ["train_loss", "train_a", "train_a.part", "train_b", "train_perplexity"],
        ["train_loss", "train_perplexity", "train_b"],
    ),
    "figures that handlers record": (
        spec_of_two_tasks(),
        ["train_loss", "val_mine", "val_mine.part", "lr_body", "lr_heads"],
        ["train_loss", "val_mine", "lr_body", "lr_heads"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_key_figures(case: str) -> None:
    spec, names, expected = CASES[case]
    assert key_figures(names, spec) == expected
    assert list(FigureChoice().of(dict.fromkeys(names, 1.0), spec)) == expected


def test_patterns_match_whole_names() -> None:
    figures = dict.fromkeys(["train_loss", "val_loss", "val_VOC.mAP", "lr"], 1.0)
    for patterns, expected in [
        ("val_.*", ["val_loss", "val_VOC.mAP"]),
        ("loss", []),
        (["lr", ".*_loss"], ["train_loss", "val_loss", "lr"]),
        (iter(["val_VOC.mAP"]), ["val_VOC.mAP"]),
    ]:
        assert list(FigureChoice(patterns).of(figures, spec_of_two_tasks())) == expected


def test_only_patterns_that_match_nothing_are_a_warning() -> None:
    history = {"train_loss": [1.0]}
    assert FigureChoice().warning(history) is FigureChoice("train_.*").warning(history) is None
    assert FigureChoice("val_loss").warning({}) is None
    assert FigureChoice("val_loss").warning(history) == (
        'no figure "val_loss" (did you mean "train_loss"?); there are "train_loss"'
    )
