"""The curves show every figure that was measured, and no more."""

from __future__ import annotations

import io
import math
import sys

import pytest

from multifit.plots import chosen, curves, new_figure

NAN = math.nan


def drawn(figure) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Return panel title -> line label -> (epochs, values)."""
    return {
        axes.get_title(): {each.get_label(): tuple(map(list, each.get_data())) for each in axes.lines}
        for axes in figure.axes
    }


def test_a_panel_holds_training_and_validation_of_one_family():
    panels = drawn(curves({"train_loss": [3, 2], "train_digit_acc": [0.1, 0.2], "val_loss": [4, 3]}))
    assert panels == {
        "loss": {"train": ([1, 2], [3, 2]), "val": ([1, 2], [4, 3])},
        "digit_acc": {"train": ([1, 2], [0.1, 0.2])},
    }


def test_parts_share_a_panel_and_a_colour_between_stages():
    figure = curves({"train_VOC.cat": [1], "train_VOC.mAP": [2], "val_VOC.cat": [3], "val_VOC.mAP": [4]})
    assert list(drawn(figure)) == ["VOC"]
    assert list(drawn(figure)["VOC"]) == ["train cat", "train mAP", "val cat", "val mAP"]
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert colours[0] == colours[2] != colours[1] == colours[3]


def test_learning_rates_share_the_last_panel():
    panels = drawn(curves({"lr_body": [0.1], "lr_heads": [0.2], "train_loss": [1]}))
    assert list(panels) == ["loss", "learning rate"]
    assert list(panels["learning rate"]) == ["body", "heads"]
    assert list(drawn(curves({"lr": [0.1]}))["learning rate"]) == ["lr"]


def test_what_was_not_measured_is_left_out():
    history = {"train_loss": [1, math.inf, 3], "val_loss": [NAN, 2, NAN], "val_acc": [NAN, NAN, NAN]}
    panels = drawn(curves(history))
    assert panels == {"loss": {"train": ([1, 3], [1, 3]), "val": ([2], [2])}}


def test_epochs_are_whole_numbers():
    axes = curves({"train_loss": [1, 2, 3]}).axes[0]
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_nothing_measured_is_said():
    figure = curves({})
    assert not figure.axes and figure.texts[0].get_text() == "nothing was measured"


@pytest.mark.parametrize("panels", [1, 2, 3, 4, 20])
def test_any_number_of_panels_can_be_saved(panels):
    file = io.BytesIO()
    curves({f"train_{number}": [1.0] * 30 for number in range(panels)}).savefig(file, format="png", dpi=20)
    assert file.getvalue().startswith(b"\x89PNG")


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "multifit\[plot\]"'):
        new_figure(1, 1)


def test_figures_are_chosen_by_name_and_by_pattern():
    history = {"train_loss": [1], "val_loss": [2], "val_VOC.mAP": [3], "val_VOCxmAP": [4], "lr": [5]}
    assert list(drawn(curves(history, "val_loss"))) == ["loss"]
    assert drawn(curves(history, "val_VOC.mAP")) == {"VOC": {"val mAP": ([1], [3])}}  # the name, no pattern
    assert drawn(curves(history, [".*_loss", "lr"])) == {
        "loss": {"train": ([1], [1]), "val": ([1], [2])},
        "learning rate": {"lr": ([1], [5])},
    }


def test_the_order_is_the_historys():
    assert chosen(["a", "b", "c"], ["c", "[ab]"]) == (["a", "b", "c"], [])
    assert chosen(["a", "b"], None) == (["a", "b"], [])
    assert chosen(["a"], ["a", "x", "y.*"]) == (["a"], ["x", "y.*"])


def test_a_figure_that_is_none_names_the_nearest():
    with pytest.raises(
        ValueError, match=r'no figure "val_los" \(did you mean "val_loss"\?\); there are "val_'
    ):
        curves({"val_loss": [1]}, ["val_los"])


def test_a_broken_pattern_is_told():
    with pytest.raises(ValueError, match=r'figures: "val_\(" is no regular expression'):
        curves({"val_loss": [1]}, "val_(")


@pytest.mark.parametrize("parts", [10, 21, 60])
def test_no_two_lines_look_alike(parts):
    history = {f"{stage}_VOC.{part}": [1.0] * 30 for stage in ("train", "val") for part in range(parts)}
    figure = curves(history)
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines]
    assert len(looks) == len(set(looks)) == 2 * parts


def test_a_legend_of_many_lines_stands_beneath_the_curves():
    figure = curves({f"val_VOC.{part}": [1.0, 2.0] for part in range(21)})
    figure.savefig(io.BytesIO(), format="png", dpi=50)  # lays it out
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert axes.get_window_extent().height > 0.4 * figure.bbox.height
