"""Task files: reading, settings, functions that are called by name, errors."""

from __future__ import annotations

import errno
import pathlib
import pickle
import sys

import pytest

from multifit.taskfile import Resolver, TaskFile, UsageError

SMALL = """
import functools
epochs = 3
rate = 0.1
@functools.lru_cache()
def net(): return ["net", rate]
def spec(): return "spec"
def data(net): return ("data", net)
"""


@pytest.fixture(autouse=True)
def clean_import_state(monkeypatch):
    """Undo what reading a task file adds to the import system."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def task(tmp_path):
    """Return a function that writes a task file and reads it."""

    def make(code: str = SMALL, name: str = "small.py") -> TaskFile:
        (tmp_path / name).write_text(code)
        return TaskFile(tmp_path / name)

    return make


# ---------------------------------------------------------------------------------------------- reading


def test_a_file_gives_its_functions_and_settings(task):
    small = task()
    assert list(small.functions) == ["net", "spec", "data"]
    assert small.settings == {"epochs": 3, "rate": 0.1}
    assert small.module.__file__.endswith("small.py")


def test_settings_are_changed_before_functions_run(task):
    small = task()
    small.set(["rate = 2", "epochs=4"])
    assert small.settings == {"epochs": 4, "rate": 2.0}
    assert small.functions["net"]() == ["net", 2.0]


def test_a_parameter_may_have_the_name_in_the_file(task):
    small = task(SMALL + "data_ = 'digits'\n").values
    assert small == {"epochs": 3, "rate": 0.1, "data": "digits", "data_": "digits"}


def test_a_setting_may_be_a_space(task):
    small = task(SMALL + "sep = ','\n")
    for text, value in ((" ", " "), ("", ""), (" ; ", ";")):
        small.set([f"sep={text}"])
        assert small.settings["sep"] == value


def test_a_file_imports_its_neighbours(task, tmp_path):
    (tmp_path / "neighbour_of_small.py").write_text("width = 5")
    assert task("from neighbour_of_small import width\n" + SMALL).settings["width"] == 5


@pytest.mark.parametrize("imports", ["from of_small import *", "from of_small import rate, epochs"])
def test_what_a_file_imports_cannot_be_set(task, tmp_path, imports):
    (tmp_path / "of_small.py").write_text("rate = 0.5\nepochs = 2\ndef trainers(): return rate")
    functions = SMALL.replace("rate = 0.1\n", "").replace("epochs = 3\n", "")
    small = task(imports + functions)
    assert small.settings == {"rate": 0.5, "epochs": 2}
    message = (
        r"cannot set rate of .*0.25.*: the file does not assign it, .* stay 0.5 where it was imported from; "
        r"write rate = ..."
    )
    with pytest.raises(UsageError, match=message):
        small.set(["rate=0.25"])
    small.restore({"rate": 0.25})  # as an earlier run had it
    assert small.settings == {"rate": 0.25, "epochs": 2}
    small = task(f"{imports}\nif epochs:\n    rate: float = rate\n{functions}")
    small.restore({"epochs": 2, "rate": 0.25})
    assert small.settings == {"rate": 0.25, "epochs": 2}
    del sys.modules["of_small"]


def test_its_functions_can_be_sent_to_worker_processes(task):
    function = task().functions["data"]
    assert pickle.loads(pickle.dumps(function)) is function


def test_its_own_exceptions_pass_through(task):
    with pytest.raises(ZeroDivisionError):
        task("1 / 0")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def net(:\n  pass", r"small.py is not a Python module: .*line 1"),
        ("epochs = 3\x00", r"small.py is not a Python module: .*null bytes"),
        (
            SMALL.replace("def net(", "def nett("),
            r'has no function "net" \(did you mean "nett"\?\).*needs "net", "spec", "data"',
        ),
        (SMALL.replace("def data(", "def xyz("), r'has no function "data": '),
        (SMALL + "net = 5", r'"net" of .* must be a function, not of type int'),
        (SMALL + "trainers = {}", r'"trainers" of .* must be a function, not of type dict'),
    ],
)
def test_a_file_that_is_not_a_task_is_an_error(task, code, message):
    with pytest.raises(UsageError, match=message):
        task(code)


def test_a_path_that_is_not_a_file_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=r"there is no file .*nothing\.py"):
        TaskFile(tmp_path / "nothing.py")
    with pytest.raises(UsageError, match="is not a file"):
        TaskFile(tmp_path)
    (tmp_path / "digits.py").touch()
    for name in ("digits", "digit.py"):
        with pytest.raises(UsageError, match=rf'there is no file .*{name} \(did you mean "digits.py"\?\)'):
            TaskFile(tmp_path / name)


def test_a_file_without_permission_is_an_error(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "small.py").write_text(SMALL)
    monkeypatch.setattr(pathlib.Path, "read_bytes", refused)
    with pytest.raises(UsageError, match=r"^cannot read .*small\.py: Permission denied$"):
        TaskFile(tmp_path / "small.py")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", r'cannot read the setting "epochs": write name=value'),
        ("epoch=3", r'has no setting "epoch" \(did you mean "epochs"\?\); it has "epochs", "rate"'),
        ("epochs=few", r"cannot set epochs of .* to 'few': it must be a whole number"),
    ],
)
def test_a_wrong_setting_is_an_error(task, assignment, message):
    with pytest.raises(UsageError, match=message):
        task().set([assignment])


def test_settings_of_an_earlier_run_are_restored(task):
    small = task("sizes = (1, 2)\n" + SMALL)
    small.restore({"epochs": 5, "sizes": [3, 4]})
    assert small.settings == {"sizes": (3, 4), "epochs": 5, "rate": 0.1}


def test_settings_are_read_by_what_the_file_has_not_an_earlier_run(task):
    small = task("size = None\nname = None\n" + SMALL)
    small.restore({"size": 5, "name": "None"})
    small.set(["size=None", "name=4", "rate=1"])
    assert small.settings == {"size": None, "name": 4, "epochs": 3, "rate": 1.0}


def test_restoring_an_unknown_setting_is_an_error(task):
    with pytest.raises(UsageError, match=r'has no setting "epoch" \(did you mean "epochs"\?\)'):
        task().restore({"epoch": 5})


def test_a_value_that_is_not_a_choice_is_an_error(task):
    small = task('from typing import Literal\nmodel: Literal["mlp", "lenet"] = "mlp"\n' + SMALL)
    with pytest.raises(UsageError, match="cannot set model of .* to 'vgg': it must be one of mlp, lenet"):
        small.set(["model=vgg"])
    with pytest.raises(UsageError, match="cannot set model of .* to 'vgg': it must be one of mlp, lenet"):
        small.restore({"model": "vgg"})


# ---------------------------------------------------------------------------------------------- resolving


def test_functions_get_each_others_results_and_are_called_once():
    calls = []

    def net(data, seed):
        calls.append("net")
        return f"net of {data} with {seed}"

    def data():
        calls.append("data")
        return "data"

    made = Resolver({"net": net, "data": data}, {"seed": 7}, "x.py")
    assert made["net"] == made["net"] == "net of data with 7"
    assert made["data"] == "data"
    assert calls == ["net", "data"] or calls == ["data", "net"]


def test_a_function_replaces_a_value_of_its_name():
    made = Resolver({"trainers": lambda: "mine"}, {"trainers": None}, "x.py")
    assert made["trainers"] == "mine"


def test_parameters_with_unknown_names_keep_their_defaults():
    def net(seed=1, width=64, *rest, **more):
        return seed, width, rest, more

    made = Resolver({"net": net}, {"seed": 7}, "x.py")
    assert made["net"] == (7, 64, (), {})


def test_positional_parameters():
    def net(seed, /, output):
        return seed, output

    assert Resolver({"net": net}, {"seed": 7, "output": "runs"}, "x.py")["net"] == (7, "runs")


def test_positional_parameters_without_a_value_keep_their_defaults():
    def net(width=64, seed=1, /):
        return width, seed

    assert Resolver({"net": net}, {"seed": 7}, "x.py")["net"] == (64, 7)


def test_an_unknown_parameter_is_an_error_before_any_call():
    def net(dta):
        raise AssertionError("was called")

    message = r'net\(\) of x.py .* "dta" \(did you mean "data"\?\); valid are "net", "data", "seed"'
    with pytest.raises(UsageError, match=message):
        Resolver({"net": net, "data": lambda: 1}, {"seed": 7}, "x.py")


@pytest.mark.parametrize(
    ("functions", "needs"),
    [
        ({"net": lambda net: 1}, {("net", "net")}),
        (
            {"net": lambda data: 1, "data": lambda spec: 1, "spec": lambda net: 1},
            {("net", "data"), ("data", "spec"), ("spec", "net")},
        ),
        (
            {"net": lambda data: 1, "data": lambda spec: 1, "spec": lambda data: 1},
            {("data", "spec"), ("spec", "data")},
        ),
    ],
)
def test_a_circle_is_an_error_that_shows_it(functions, needs):
    with pytest.raises(UsageError, match="functions of x.py need each other in a circle: ") as caught:
        Resolver(functions, {}, "x.py")
    circle = str(caught.value).partition("circle: ")[2].split(" -> ")
    assert set(zip(circle, circle[1:])) == needs and len(circle) == len(needs) + 1
