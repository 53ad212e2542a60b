"""Curves show every figure that was measured, and nothing else."""

import io
import math
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from multifit.handlers.plots import (
    COLOURS,
    MANY_CLASSES,
    MANY_TICKS,
    compare_curves,
    curves,
    draw_confusion,
    draw_scatter,
    new_figure,
    task_curves,
    task_figures,
    to_svg,
)

NAN = math.nan


def drawn(figure: Figure) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """Return panel title -> line label -> (epochs, values)."""
    return {
        axes.get_title(): {each.get_label(): tuple(map(list, each.get_data())) for each in axes.lines}
        for axes in figure.axes
    }


def test_a_panel_holds_training_and_validation_of_one_family_and_the_last_one_learning_rates():
    figures = {"lr_body": [0.1], "lr_heads": [0.2], "train_loss": [3, 2], "train_digit_acc": [0.1, 0.2]}
    panels = drawn(curves({**figures, "val_loss": [4, 3]}))
    assert panels == {
        "loss": {"train": ([1, 2], [3, 2]), "val": ([1, 2], [4, 3])},
        "digit_acc": {"train": ([1, 2], [0.1, 0.2])},
        "learning rate": {"body": ([1], [0.1]), "heads": ([1], [0.2])},
    }
    assert list(panels)[-1] == "learning rate"
    assert list(drawn(curves({"lr": [0.1]}))["learning rate"]) == ["lr"]


def test_parts_share_a_panel_and_a_colour_between_stages():
    figure = curves({"train_VOC.cat": [1], "train_VOC.mAP": [2], "val_VOC.cat": [3], "val_VOC.mAP": [4]})
    assert list(drawn(figure)) == ["VOC"]
    assert list(drawn(figure)["VOC"]) == ["train cat", "train mAP", "val cat", "val mAP"]
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert colours[0] == colours[2] != colours[1] == colours[3]


def test_sets_for_validation_are_drawn_with_the_training():
    history = {"train_loss": [1], "train_VOC.mAP": [2], "train_top_loss": [3]}
    names = ["clean_loss", "very_noisy_loss", "clean_VOC.mAP", "clean_top_loss", "top_loss", "own"]
    figure = curves({**history, **{f"val_{name}": [1] for name in names}})
    assert {title: list(panel) for title, panel in drawn(figure).items()} == {
        "loss": ["train", "val clean", "val very_noisy"],
        "VOC": ["train mAP", "val clean mAP"],
        "top_loss": ["train", "val clean", "val"],
        "own": ["val"],
    }


def test_what_a_handler_records_is_drawn_under_its_own_name():
    own = {"seconds": [2], "total_seconds": [3], "gradnorm_body": [7], "lr.body": [1], "learning rate": [5]}
    history = {"lr_body": [0.1], "train_seconds": [4], "val_seconds": [6], **own}
    panels = drawn(curves(history))
    assert panels.pop("learning rate") == {"learning rate": ([1], [5]), "body": ([1], [0.1])}
    assert panels.pop("seconds") == {"train": ([1], [4]), "val": ([1], [6]), "seconds": ([1], [2])}
    assert panels == {
        name: {name: ([1], own[name])} for name in ("total_seconds", "gradnorm_body", "lr.body")
    }
    train, val, seconds = (line.get_color() for line in curves(history).axes[0].lines)
    assert train == val != seconds
    compared = drawn(compare_curves({"a": history}))
    assert all(compared[name]["a"] == ([1], values) for name, values in own.items())
    assert compared["learning rate body"] == {"a": ([1], [0.1])}


def test_values_that_cannot_be_drawn_are_left_out():
    history = {"train_loss": [1, math.inf, 3], "val_loss": [NAN, 2, NAN], "val_acc": [NAN, NAN, NAN]}
    assert drawn(curves(history)) == {"loss": {"train": ([1, 3], [1, 3]), "val": ([2], [2])}}
    values = [1.7e308, -1.5e308, 1e301]
    figure = curves({"train_loss": [*values, 0.5, 1e300, -1e300], "val_loss": values, "only": values})
    assert drawn(figure) == {"loss": {"train": ([4, 5, 6], [0.5, 1e300, -1e300])}}
    assert to_svg(figure).startswith(b"<?xml")
    tasks = task_curves({name: [*values, 0.5] for name in TASKS})
    assert to_svg(tasks).startswith(b"<?xml")
    figure = curves({})
    assert not figure.axes and figure.texts[0].get_text() == "nothing was measured"


class Refuses:
    def find_spec(self, name, path=None, target=None):
        raise ValueError("Key backend: 'of mine' is not a valid value")  # of MPLBACKEND


def test_without_matplotlib_the_error_says_why(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match=r"pip install matplotlib"):
            new_figure(1, 1)
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    monkeypatch.setattr(sys, "meta_path", [Refuses(), *sys.meta_path])
    with pytest.raises(ImportError, match="cannot be imported, perhaps because of MPLBACKEND: Key backend"):
        new_figure(1, 1)


def test_figures_are_chosen_by_name_and_by_pattern():
    history = {"train_loss": [1], "val_loss": [2], "val_VOC.mAP": [3], "val_VOCxmAP": [4], "lr": [5]}
    assert list(drawn(curves(history, "val_loss"))) == ["loss"]
    assert drawn(curves(history, "val_VOC.mAP")) == {"VOC": {"val mAP": ([1], [3])}}  # a name, not a pattern
    assert drawn(curves(history, [".*_loss", "lr"])) == {
        "loss": {"train": ([1], [1]), "val": ([1], [2])},
        "learning rate": {"lr": ([1], [5])},
    }


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (["val_los"], r'no figure "val_los" \(did you mean "val_loss"\?\); there are "val_'),
        ("val_(", r'figures: "val_\(" is not a valid regular expression'),
    ],
)
def test_what_chooses_no_figure_is_an_error(figures, message):
    with pytest.raises(ValueError, match=message):
        curves({"val_loss": [1]}, figures)


def test_no_two_lines_look_alike():
    figure = curves({f"{stage}_VOC.{part}": [1.0] * 30 for stage in ("train", "val") for part in range(60)})
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines]
    assert len(looks) == len(set(looks)) == 120


def test_a_long_legend_of_any_names_is_below_the_curves():
    figure = curves({f"val_$VOC<.&{part}$": [1.0, 2.0] for part in range(21)})
    figure.savefig(io.BytesIO(), format="png", dpi=50)  # computes the layout
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert axes.get_window_extent().height > 0.4 * figure.bbox.height
    first, second = (to_svg(curves({"val_$VOC<.&$": [1.0, math.inf, 1e30]})) for _ in range(2))
    assert first == second and first.startswith(b"<?xml")


def test_runs_are_compared_in_a_panel_per_figure():
    first = {"train_loss": [2, 1], "val_VOC.cat": [3], "lr_body": [0.1], "val_none": [NAN]}
    figure = compare_curves({"_a": first, "b": {"train_loss": [4], "lr_body": [0.2]}})
    assert drawn(figure) == {
        "loss": {"train _a": ([1, 2], [2, 1]), "train b": ([1], [4])},
        "VOC.cat": {"val _a": ([1], [3])},
        "learning rate body": {" _a": ([1], [0.1]), "b": ([1], [0.2])},
    }
    colours = [[line.get_color() for line in axes.lines] for axes in figure.axes]
    assert colours == [[COLOURS[0], COLOURS[1]], [COLOURS[0]], [COLOURS[0], COLOURS[1]]]


TASKS = {
    "train_loss": [2.0, 1.0], "train_weight_a": [1.0, 0.5], "train_weight_b_c": [1.0, 1.5],
    "train_gradnorm_a": [3.0, 2.0], "train_gradnorm_b_c": [1.0, math.nan],
    "train_cosine_a_b_c": [-0.5, math.nan], "train_conflict": [1.0, math.nan],
}  # fmt: skip


def test_what_tasks_do_to_each_other():
    assert set(task_figures(TASKS)) == TASKS.keys() - {"train_loss"}
    figure = task_curves(TASKS)
    titles = ["weights", "lengths of gradients", "share of pairs that conflict", "cosines of gradients"]
    assert [axes.get_title() for axes in figure.axes[:4]] == titles
    cells = [text.get_text() for text in figure.axes[3].texts]
    assert cells == ["1.00", "-0.50", "-0.50", "1.00"]


def test_losses_that_are_named_like_weights_are_no_tasks():
    figures = {f"{stage}_weight_{name}": [1.0] for stage in ("train", "val") for name in "ab"}
    assert task_figures(figures) == [] == task_figures({"train_weight_a": [1.0]})


@pytest.mark.parametrize(("part", "title"), [("weight", "weights"), ("gradnorm", "lengths of gradients")])
def test_each_kind_of_task_figures_stands_alone(part, title):
    some = {name: values for name, values in TASKS.items() if part in name}
    assert task_figures(some) == list(some)
    assert [axes.get_title() for axes in task_curves(some).axes] == [title]


@pytest.mark.parametrize(
    ("counts", "title", "texts"),
    [
        ([[3, 1], [0, 4]], "kind: 87.5% of 8 right", ["3", "1", "4"]),
        ([[30000, 10000], [0, 0]], "kind: 75.0% of 40,000 right", ["75%", "25%"]),
        ([[0, 0], [0, 0]], "kind: 0.0% of 0 right", []),
    ],
    ids=["counts", "shares of large counts", "nothing"],
)
def test_a_confusion_matrix_has_a_row_for_each_label(counts, title, texts):
    axes = draw_confusion("kind", np.array(counts)).axes[0]
    assert axes.get_title() == title and [each.get_text() for each in axes.texts] == texts
    assert [axes.get_ylabel(), axes.get_xlabel()] == ["label", "prediction"]
    places = [tuple(map(int, each.get_position())) for each in axes.texts]
    assert places == [(column, row) for row, column in zip(*np.nonzero(counts))]


def test_many_classes_are_drawn_without_numbers_and_with_some_names():
    for classes in (MANY_CLASSES, MANY_CLASSES + 1):
        axes = draw_confusion("kind", np.eye(classes, dtype=int)).axes[0]
        assert len(axes.texts) == (classes if classes == MANY_CLASSES else 0)
    axes = draw_confusion("kind", np.eye(2 * MANY_TICKS + 1, dtype=int)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "3", "6"]


def test_names_of_classes_that_are_long_are_turned():
    for names, turn in ((["a", "b"], 0), (["cat", "$x$"], 45)):
        labels = draw_confusion("kind", np.eye(2, dtype=int), names).axes[0].get_xticklabels()
        assert [each.get_text() for each in labels] == names
        assert {each.get_rotation() for each in labels} == {turn}


@pytest.mark.parametrize("labels", [[1.0, 2.0, NAN, 4.0], []])
def test_a_scatter_plot_leaves_out_what_cannot_be_drawn(labels):
    axes = draw_scatter("age", labels, [1.5, 2.5, 3.0, math.inf][: len(labels)]).axes[0]
    assert axes.collections[0].get_offsets().tolist() == ([[1.0, 1.5], [2.0, 2.5]] if labels else [])
    assert axes.get_title() == f"age: {2 if labels else 0} values"
    assert axes.lines[0].get_xydata().tolist() == ([[1, 1], [2.5, 2.5]] if labels else [[0, 0], [1, 1]])
