"""Task files: reading, settings, functions that are called by name, errors."""

import math
import pickle
import re
import sys
from pathlib import Path

import pytest

from multifit.cli.taskfile import Resolver, TaskFile, UsageError

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


def test_a_file_gives_its_functions_and_settings_which_are_changed_before_functions_run(task):
    small = task()
    assert list(small.functions) == ["net", "spec", "data"]
    assert small.settings == {"epochs": 3, "rate": 0.1}
    assert small.module.__file__.endswith("small.py")
    small.set(["rate = 2", "epochs=4"])
    assert small.settings == {"epochs": 4, "rate": 2.0}
    assert small.functions["net"]() == ["net", 2.0]
    function = small.functions["data"]  # as worker processes get it
    assert pickle.loads(pickle.dumps(function)) is function


def test_a_file_imports_its_neighbours(task, tmp_path):
    (tmp_path / "neighbour_of_small.py").write_text("width = 5")
    assert task("from neighbour_of_small import width\n" + SMALL).settings["width"] == 5


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def net(:\n  pass", r"small.py is not a Python module: .*line 1"),
        ("epochs = 3\x00", r"small.py is not a Python module: .*null bytes"),
        (
            SMALL.replace("def net(", "def nett("),
            r'has no function "net" \(did you mean "nett"\?\).*needs "net", "spec", "data"',
        ),
        (SMALL + "trainers = {}", r'"trainers" of .* must be a function, not of type dict'),
    ],
)
def test_a_file_that_is_not_a_task_is_an_error(task, code, message):
    with pytest.raises(UsageError, match=message):
        task(code)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("trainer", "trainers"), ("balanced", "balance"), ("handler", "handlers"), ("picture", "pictures"),
        ("initialiser", "initializer"), ("input", "inputs"), ("shown", "show"), ("callbacks", "handlers"),
        ("event_handlers", "handlers"),
    ],
)  # fmt: skip
def test_an_optional_function_that_is_misspelt_is_an_error(task, name, near):
    function = f"def {name}(): return 1\n"
    message = (
        rf'function "{name}" that nothing uses \(did you mean "{near}"\?\): a task file may have "trainers"'
    )
    with pytest.raises(UsageError, match=message):
        task(SMALL + function)
    for use in (
        f"def {near}(): return {name}()\n",
        f"def trainers({name}): return {name}\n",
        f"def {near}(): return 1\n",
        f"chosen = {{'mine': {name}}}\n",
    ):
        assert task(SMALL + function + use).functions
    assert task(SMALL + function.replace(name, f"_{name}")).functions
    assert task(f"{SMALL}from functools import lru_cache\n@lru_cache\n{function}").functions


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "tasks").glob("*.py")), ids=lambda path: path.stem
)
def test_no_helper_of_the_tasks_counts_as_misspelt(path, task):
    code = path.read_text("utf-8")
    names = re.findall(r"^def (\w+)", code, re.MULTILINE)
    functions = "".join(f"def {name}(): return 1\n" for name in names)
    assert set(task(functions).functions) <= set(names)


def test_a_path_that_is_not_a_file_is_an_error(tmp_path):
    (tmp_path / "digits.py").touch()
    for name, more in (("nothing.py", ""), (".", ""), ("digits", "digits.py"), ("digit.py", "digits.py")):
        hint = rf' \(did you mean "{more}"\?\)' if more else ""
        with pytest.raises(UsageError, match=rf"there is no file .*{'' if name == '.' else name}{hint}"):
            TaskFile(tmp_path / name)


def test_settings_are_the_public_values_of_simple_types(task):
    code = "sizes = (1, 2)\nnone = None\nflag = True\n_hidden = 1\ntable = {}\nKINDS = (1, 2)\n"
    assert list(task(code + SMALL).settings) == ["sizes", "none", "flag", "epochs", "rate"]


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        (" -3 ", 20, -3), ("2", 0.5, 2.0), ("1e-3", 0.5, 0.001), ("inf", 0.5, math.inf), ("", "sgd", ""),
        ("7", "sgd", "7"), ("False", True, False), ("[1, 2]", (3, 4), (1, 2)), ("1, 2", [3], [1, 2]),
        ("[(8, 'relu'), [1, {'a': (2,)}]]", [], [(8, "relu"), [1, {"a": (2,)}]]),
        ("7", None, 7), ("(4,)", None, (4,)), ("resnet", None, "resnet"), ("'7'", None, "7"),
        ("None", None, None),
    ],
)  # fmt: skip
def test_a_setting_is_a_literal_of_the_defaults_type_and_comes_back_from_its_text(task, text, default, value):
    small = task(f"mine = {default!r}\n{SMALL}")
    small.set([f"mine={text}"])
    assert repr(small.settings["mine"]) == repr(value)
    again = task(f"mine = {default!r}\n{SMALL}", name="again.py")
    again.set(f"{name}={text}" for name, text in small.texts.items())
    assert repr(again.settings) == repr(small.settings)


@pytest.mark.parametrize(
    ("text", "default", "message"),
    [
        ("2.5", 20, "must be a whole number"), ("many", 0.5, "must be a number"),
        ("1", True, "must be True or False"), ("[1, ", [3], "must be a list, such as"),
        ("5", (3,), "must be a list, such as"), ("{[]: 1}", (3,), "must be a list, such as"),
    ],
)  # fmt: skip
def test_text_of_another_type_is_an_error(task, text, default, message):
    with pytest.raises(UsageError, match=rf"cannot set mine of .*: it {message}"):
        task(f"mine = {default!r}\n{SMALL}").set([f"mine={text}"])


def test_an_unknown_setting_is_an_error(task):
    with pytest.raises(
        UsageError, match=r'has no setting "epoch" \(did you mean "epochs"\?\); it has "epochs", '
    ):
        task().set(["epoch=3"])


def test_a_value_that_no_text_gives_has_none(task):
    assert task("heads = [len]\n" + SMALL).texts == {"epochs": "3", "rate": "0.1"}


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
def test_a_literal_restricts_a_setting(task, first):
    small = task(f'{first}from typing import Literal\nmodel: Literal["mlp", "lenet"] = "mlp"\n' + SMALL)
    small.set(["model=lenet"])
    assert small.settings["model"] == "lenet"
    message = r'cannot set model of .*: it must be one of "mlp", "lenet" \(did you mean "lenet"\?\)'
    with pytest.raises(UsageError, match=message):
        small.set(["model=lene"])


def test_names_for_type_checkers_are_left_alone(task):
    small = task("from __future__ import annotations\nother: Unknown = None\n" + SMALL)
    small.set(["rate=1"])
    assert small.settings["rate"] == 1.0


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
