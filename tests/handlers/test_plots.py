"""Curves show every figure that was measured, and nothing else."""

import io
import math
import sys

import numpy as np
import pytest

from multifit.handlers import plots
from multifit.handlers.plots import COLOURS, compare_curves, curves, draw_confusion, task_curves, task_figures

NAN, INFINITY = math.nan, math.inf
TOO_FAR = [1.7e308, -1.5e308, 1e301]  # for matplotlib


def drawn(figure):
    """Return panel title -> line label -> (epochs, values)."""
    return {
        axes.get_title(): {each.get_label(): tuple(map(list, each.get_data())) for each in axes.lines}
        for axes in figure.axes
    }


ONE = {"train_loss": [1], "val_loss": [2], "val_VOC.mAP": [3], "val_VOCxmAP": [4], "lr": [5]}
SETS = ("clean_loss", "very_noisy_loss", "clean_VOC.mAP", "clean_top_loss", "top_loss", "own")
OF_SETS = [f"val_{name}" for name in SETS]
OWN = {"seconds": [2], "total_seconds": [3], "gradnorm_body": [7], "lr.body": [1], "learning rate": [5]}
# The history, the figures that are chosen, and all panels in order.
PANELS = {
    "training and validation, and learning rates last": (
        {"lr_body": [0.1], "lr_heads": [0.2], "train_loss": [3, 2], "train_acc": [1, 2], "val_loss": [4, 3]},
        None,
        {"loss": {"train": ([1, 2], [3, 2]), "val": ([1, 2], [4, 3])},
         "acc": {"train": ([1, 2], [1, 2])},
         "learning rate": {"body": ([1], [0.1]), "heads": ([1], [0.2])}},
    ),
    "sets for validation beside the training": (
        {"train_loss": [1], "train_VOC.mAP": [2], "train_top_loss": [3], **dict.fromkeys(OF_SETS, [4])},
        None,
        {"loss": {"train": ([1], [1]), "val clean": ([1], [4]), "val very_noisy": ([1], [4])},
         "VOC": {"train mAP": ([1], [2]), "val clean mAP": ([1], [4])},
         "top_loss": {"train": ([1], [3]), "val clean": ([1], [4]), "val": ([1], [4])},
         "own": {"val": ([1], [4])}},
    ),
    "what a handler records under its own name": (
        {"lr_body": [0.1], "train_seconds": [4], "val_seconds": [6], **OWN}, None,
        {"seconds": {"train": ([1], [4]), "val": ([1], [6]), "seconds": ([1], [2])},
         **{name: {name: ([1], OWN[name])} for name in ("total_seconds", "gradnorm_body", "lr.body")},
         "learning rate": {"learning rate": ([1], [5]), "body": ([1], [0.1])}},
    ),
    "not what cannot be drawn": (
        {"train_loss": [1, INFINITY, 3], "val_loss": [NAN, 2, NAN], "val_acc": [NAN] * 3, "only": TOO_FAR,
         "val_far": [*TOO_FAR, 0.5, 1e300, -1e300]},
        None,
        {"loss": {"train": ([1, 3], [1, 3]), "val": ([2], [2])},
         "far": {"val": ([4, 5, 6], [0.5, 1e300, -1e300])}},
    ),
    "a figure by its name": (ONE, "val_loss", {"loss": {"val": ([1], [2])}}),
    "a name that is no pattern": (ONE, "val_VOC.mAP", {"VOC": {"val mAP": ([1], [3])}}),
    "patterns": (
        ONE, [".*_loss", "lr"],
        {"loss": {"train": ([1], [1]), "val": ([1], [2])}, "learning rate": {"lr": ([1], [5])}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("history", "figures", "panels"), PANELS.values(), ids=PANELS)
def test_panels(history, figures, panels):
    found = drawn(curves(history, figures))
    assert found == panels
    assert ("learning rate" not in found) or list(found)[-1] == "learning rate"


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


def test_an_empty_history_says_so():
    figure = curves({})
    assert not figure.axes and figure.texts[0].get_text() == "nothing was measured"


def test_parts_have_colours_and_no_two_lines_look_alike():
    history = {f"{stage}_VOC.{part}": [1.0] * 30 for stage in ("train", "val") for part in range(60)}
    lines = curves(history).axes[0].lines
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines]
    assert len(looks) == len(set(looks)) == 120
    assert lines[0].get_label() == "train 0" and lines[60].get_label() == "val 0"
    assert lines[0].get_color() == lines[60].get_color() != lines[1].get_color()


def test_a_long_legend_of_any_names_is_below_the_curves():
    figure = curves({f"val_$VOC<.&{part}$": [1.0, 2.0] for part in range(21)})
    figure.savefig(io.BytesIO(), format="png", dpi=50)  # computes the layout
    axes = figure.axes[0]
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert axes.get_window_extent().height > 0.4 * figure.bbox.height
    first, second = (plots.to_svg(curves({"val_$VOC<.&$": [1.0, INFINITY, 1e30]})) for _ in range(2))
    assert first == second and first.startswith(b"<?xml")


def test_runs_are_compared_in_a_panel_per_figure():
    first = {"train_loss": [2, 1], "val_VOC.cat": [3], "lr_body": [0.1], "val_none": [NAN]}
    figure = compare_curves({"_a": first, "b": {"train_loss": [4], "lr_body": [0.2], "own": [6]}})
    assert drawn(figure) == {
        "loss": {"train _a": ([1, 2], [2, 1]), "train b": ([1], [4])},
        "VOC.cat": {"val _a": ([1], [3])},
        "learning rate body": {" _a": ([1], [0.1]), "b": ([1], [0.2])},
        "own": {"b": ([1], [6])},
    }
    colours = [[line.get_color() for line in axes.lines] for axes in figure.axes]
    assert colours == [[COLOURS[0], COLOURS[1]], [COLOURS[0]], [COLOURS[0], COLOURS[1]], [COLOURS[1]]]


class Refuses:
    def find_spec(self, name, path=None, target=None):
        raise ValueError("Key backend: 'of mine' is not a valid value")  # of MPLBACKEND


def test_without_matplotlib_the_error_says_why(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match=r"pip install matplotlib"):
            plots.new_figure(1, 1)
    monkeypatch.delitem(sys.modules, "matplotlib.figure")
    monkeypatch.setattr(sys, "meta_path", [Refuses(), *sys.meta_path])
    with pytest.raises(ImportError, match="cannot be imported, perhaps because of MPLBACKEND: Key backend"):
        plots.new_figure(1, 1)


TASKS = {
    "train_loss": [2.0, 1.0], "train_weight_a": [1.0, 0.5], "train_weight_b_c": [1.0, 1.5],
    "train_gradnorm_a": [3.0, 2.0], "train_gradnorm_b_c": [1.0, NAN],
    "train_cosine_a_b_c": [-0.5, NAN], "train_conflict": [1.0, NAN],
}  # fmt: skip
ALIKE = {f"{stage}_weight_{name}": [1.0] for stage in ("train", "val") for name in "ab"}  # losses
TITLES = ["weights", "lengths of gradients", "share of pairs that conflict", "cosines of gradients"]


@pytest.mark.parametrize(
    ("part", "titles"), [("", TITLES), ("weight", TITLES[:1]), ("gradnorm", TITLES[1:2])]
)
def test_what_tasks_do_to_each_other(part, titles):
    some = {name: values for name, values in TASKS.items() if part in name}
    assert set(task_figures(some)) == set(some) - {"train_loss"}
    figure = task_curves({name: [*TOO_FAR, *values] for name, values in some.items()})
    assert [axes.get_title() for axes in figure.axes[:4]] == titles
    assert plots.to_svg(figure).startswith(b"<?xml")
    assert task_figures(ALIKE) == [] == task_figures({"train_weight_a": [1.0]})
    if not part:
        cells = [text.get_text() for text in task_curves(TASKS).axes[3].texts]
        assert cells == ["1.00", "-0.50", "-0.50", "1.00"]


MANY = np.eye(plots.MANY_CLASSES, dtype=int)


@pytest.mark.parametrize(
    ("counts", "title", "texts"),
    [
        ([[3, 1], [0, 4]], "kind: 87.5% of 8 right", ["3", "1", "4"]),
        ([[30000, 10000], [0, 0]], "kind: 75.0% of 40,000 right", ["75%", "25%"]),
        ([[0, 0], [0, 0]], "kind: 0.0% of 0 right", []),
        (MANY, f"kind: 100.0% of {len(MANY)} right", ["1"] * len(MANY)),
        (np.eye(len(MANY) + 1, dtype=int), f"kind: 100.0% of {len(MANY) + 1} right", None),  # too many
    ],
    ids=["counts", "shares of large counts", "nothing", "many", "too many"],
)
def test_a_confusion_matrix_has_a_row_for_each_label(counts, title, texts):
    axes = draw_confusion("kind", np.array(counts)).axes[0]
    assert axes.get_title() == title and [each.get_text() for each in axes.texts] == (texts or [])
    assert [axes.get_ylabel(), axes.get_xlabel()] == ["label", "prediction"]
    places = [tuple(map(int, each.get_position())) for each in axes.texts]
    assert places == ([] if texts is None else [(column, row) for row, column in zip(*np.nonzero(counts))])


def test_names_of_classes_are_some_of_many_and_turned_if_they_are_long():
    axes = draw_confusion("kind", np.eye(2 * plots.MANY_TICKS + 1, dtype=int)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "3", "6"]
    for names, turn in ((["a", "b"], 0), (["cat", "$x$"], 45)):
        labels = draw_confusion("kind", np.eye(2, dtype=int), names).axes[0].get_xticklabels()
        assert [(each.get_text(), each.get_rotation()) for each in labels] == [(name, turn) for name in names]


@pytest.mark.parametrize("labels", [[1.0, 2.0, NAN, 4.0], []])
def test_a_scatter_plot_leaves_out_what_cannot_be_drawn(labels):
    axes = plots.draw_scatter("age", labels, [1.5, 2.5, 3.0, INFINITY][: len(labels)]).axes[0]
    assert axes.collections[0].get_offsets().tolist() == ([[1.0, 1.5], [2.0, 2.5]] if labels else [])
    assert axes.get_title() == f"age: {2 if labels else 0} values"
    assert axes.lines[0].get_xydata().tolist() == ([[1, 1], [2.5, 2.5]] if labels else [[0, 0], [1, 1]])
