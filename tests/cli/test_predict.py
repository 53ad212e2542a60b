"""``multifit predict`` reads inputs as the task file does, and prints or draws the predictions."""

from pathlib import Path

import pytest

INPUTS = """
def inputs(arguments):
    return np.array([text.split(",") for text in arguments], "float32")
"""

SHOW = """
def show(arguments, outputs, history):
    assert len(arguments) == len(outputs["kind"]) and len(history["train_loss"]) == epochs
    return [["left", "right"][kind] for kind in outputs["kind"].argmax(axis=1)]
"""

DRAW = """
def show(outputs):
    from matplotlib.figure import Figure
    return [Figure(figsize=(1, 1)) for _ in outputs["kind"]]
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


def test_show_may_return_a_single_text_for_a_single_input(predict):
    result = predict(INPUTS + "def show(): return 'something'\n", "1,2,3")
    assert result.out == "1,2,3: something\n"


def test_without_show_the_outputs_are_printed(predict):
    result = predict(INPUTS, "3,0,0")
    assert result.out.startswith("3,0,0: kind [") and ", place [" in result.out


@pytest.mark.parametrize(
    ("documented", "end"),
    [("", ")\n"), ('    """Read\n    rows.\n\n    More."""\n', "); about its inputs(): Read rows.\n")],
)
def test_an_input_that_cannot_be_read_is_one_line(predict, documented, end):
    result = predict(INPUTS.replace("(arguments):\n", f"(arguments):\n{documented}"), "x.npy")
    assert result.code == 2 and result.err.count("\n") == 1 and result.err.endswith(end)
    assert "small.py cannot read INPUT: could not convert string to float: 'x.npy' (" in result.err


def test_an_error_of_the_run_is_not_one_of_the_input(predict):
    Path("runs/small/final.params").unlink()
    result = predict("def inputs(arguments, estimator): pass\n", "1,2,3")
    assert result.code == 2 and "its run has not finished" in result.err and "INPUT" not in result.err


def test_an_error_of_the_net_itself_keeps_its_traceback(predict):
    with pytest.raises(ZeroDivisionError, match="raised in the net's forward pass"):
        predict(INPUTS + "TwoHeads.hybrid_forward = lambda self, F, point: 1 / 0\n", "3,0,0")


def test_a_file_without_inputs_is_an_error(predict):
    result = predict("", "3,0,0")
    assert result.code == 2 and 'has no function "inputs": predicting needs inputs(arguments)' in result.err


def test_another_number_of_answers_than_inputs_is_an_error(predict):
    result = predict(INPUTS + "def show(): return ['a', 'b']\n", "1,2,3")
    assert result.code == 2 and "one text or figure for each input: 1, not 2\n" in result.err


def test_a_history_that_cannot_be_read_is_an_error(predict):
    Path("runs/small/history.json").write_text("{")
    result = predict(INPUTS + SHOW, "3,0,0")
    assert result.code == 2 and "cannot read runs/small/history.json: " in result.err
    assert result.err.count("\n") == 1


def test_an_unknown_parameter_of_show_is_an_error_before_training(write, multifit):
    result = multifit("train", write(INPUTS + "def show(output_s): pass\n"))
    assert result.code == 2 and "show() of" in result.err and '(did you mean "outputs"?)' in result.err
    assert not Path("runs").exists()
