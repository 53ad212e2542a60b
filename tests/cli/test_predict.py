"""``multifit predict`` reads inputs as the task file does, and prints or draws the predictions."""

from pathlib import Path

import pytest

from .results import DRAW, INPUTS

SHOW = """
def show(arguments, outputs, history):
    assert len(arguments) == len(outputs["kind"]) and len(history["train_loss"]) == epochs
    return [["left", "right"][kind] for kind in outputs["kind"].argmax(axis=1)]
"""


@pytest.fixture
def predict(trained, write, multifit):
    """Return a function that predicts with the trained task, to whose file it adds code."""
    return lambda more, *arguments: multifit("predict", write(more), "--from", "runs/small", *arguments)


def test_it_prints_the_prediction_for_each_input(predict):
    result = predict(INPUTS + SHOW, "3,0,0", "3," + 80 * "0" + ",0", "--", "-3,0,0")
    long = "3," + 58 * "0" + "..."
    assert (result.code, result.out) == (0, f"3,0,0: right\n{long}: right\n-3,0,0: left\n")


@pytest.mark.parametrize(
    ("options", "folder"), [((), "runs/small/predictions"), (("--output", "there"), "there")]
)
def test_it_draws_where_the_file_draws(predict, options, folder):
    result = predict(INPUTS + DRAW, "1,2,3", "4,5,6", *options)
    paths = [Path(line.split(": ")[1]) for line in result.out.strip().split("\n")]
    assert [str(path) for path in paths] == [f"{folder}/1-1,2,3.png", f"{folder}/2-4,5,6.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_show_may_return_a_single_text_and_without_it_the_outputs_are_printed(predict):
    assert predict(INPUTS + "def show(): return 'something'\n", "1,2,3").out == "1,2,3: something\n"
    result = predict(INPUTS, "3,0,0")
    assert result.out.startswith("3,0,0: kind [") and ", place [" in result.out
