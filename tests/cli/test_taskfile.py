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


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Return a function that writes a task file and reads it; undo what reading adds to the import system."""

    def make(code: str = SMALL) -> TaskFile:
        (tmp_path / "small.py").write_text(code)
        return TaskFile(tmp_path / "small.py")

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_file_gives_its_functions_and_settings_which_are_changed_before_functions_run(task, tmp_path):
    (tmp_path / "neighbour_of_small.py").write_text("width = 5")
    small = task("from neighbour_of_small import width\n" + SMALL)
    assert list(small.functions) == ["net", "spec", "data"]
    assert small.settings == {"width": 5, "epochs": 3, "rate": 0.1}
    assert small.module.__file__.endswith("small.py")
    small.set(["rate = 2", "epochs=4"])
    assert small.settings == {"width": 5, "epochs": 4, "rate": 2.0}
    assert small.functions["net"]() == ["net", 2.0]
    function = small.functions["data"]  # as worker processes get it
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def net(:\n  pass", "small.py is not a Python module: .*line 1"),
        ("epochs = 3\x00", "small.py is not a Python module: .*null bytes"),
        (SMALL.replace("def net(", "def nett("),
         r'has no function "net" \(did you mean "nett"\?\).*needs "net", "spec", "data"'),
        (SMALL + "trainers = {}", r'"trainers" of .* must be a function, not of type dict'),
    ],
)  # fmt: skip
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
    message = rf'function "{name}" that nothing uses \(did you mean "{near}"\?\): a task file may have "tr'
    with pytest.raises(UsageError, match=message):
        task(SMALL + function)
    for used in (
        f"{function}def {near}(): return {name}()\n",
        f"{function}def trainers({name}): return {name}\n",
        f"{function}def {near}(): return 1\n",
        f"{function}chosen = {{'mine': {name}}}\n",
        f"def _{name}(): return 1\n",
        f"from functools import lru_cache\n@lru_cache\n{function}",
    ):
        assert task(SMALL + used).functions


def test_no_helper_of_the_tasks_counts_as_misspelt(task):
    for path in (Path(__file__).parents[2] / "tasks").glob("*.py"):
        names = re.findall(r"^def (\w+)", path.read_text("utf-8"), re.MULTILINE)
        functions = "".join(f"def {name}(): return 1\n" for name in names)
        assert set(task(functions).functions) <= set(names)


def test_a_path_that_is_not_a_file_is_an_error(tmp_path):
    (tmp_path / "digits.py").touch()
    for name, more in (("nothing.py", ""), (".", ""), ("digits", "digits.py"), ("digit.py", "digits.py")):
        hint = rf' \(did you mean "{more}"\?\)' if more else ""
        with pytest.raises(UsageError, match=rf"there is no file .*{'' if name == '.' else name}{hint}"):
            TaskFile(tmp_path / name)


def test_settings_are_the_public_values_of_simple_types(task):
    code = "sizes = (1, 2)\nnone = None\nwords = [print]\n_hidden = 1\ntable = {}\nKINDS = (1, 2)\n"
    small = task(code + SMALL)
    assert list(small.settings) == ["sizes", "none", "words", "epochs", "rate"]
    assert small.texts == {"sizes": "(1, 2)", "none": "None", "epochs": "3", "rate": "0.1"}  # words has none


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
    small, again = (task(f"mine = {default!r}\n{SMALL}") for _ in range(2))
    small.set([f"mine={text}"])
    assert repr(small.settings["mine"]) == repr(value)
    again.set(f"{name}={text}" for name, text in small.texts.items())
    assert repr(again.settings) == repr(small.settings)


LITERAL = 'from typing import Literal\nmodel: Literal["mlp", "lenet"] = "mlp"\n'


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ("mine=2.5", "mine = 20", "cannot set mine of .*: it must be a whole number"),
        ("mine=many", "mine = 0.5", "it must be a number"),
        ("mine=1", "mine = True", "it must be True or False"),
        ("mine=[1, ", "mine = [3]", "it must be a list, such as"),
        ("mine=5", "mine = (3,)", "it must be a list, such as"),
        ("mine={[]: 1}", "mine = (3,)", "it must be a list, such as"),
        ("epoch=3", "", r'has no setting "epoch" \(did you mean "epochs"\?\); it has "epochs", '),
        ("model=lene", LITERAL,
         r'cannot set model of .*: it must be one of "mlp", "lenet" \(did you mean "lenet"\?\)'),
    ],
)  # fmt: skip
def test_a_setting_of_another_type_or_name_is_an_error(task, setting, code, message):
    small = task(f"{code}\n{SMALL}")
    before = small.settings
    with pytest.raises(UsageError, match=message):
        small.set([setting])
    assert small.settings == before


def test_what_annotations_say(task):
    small = task(LITERAL + SMALL)
    small.set(["model=lenet"])
    assert small.settings["model"] == "lenet"
    small = task("from __future__ import annotations\nother: ForTypeCheckers = None\n" + SMALL)
    small.set(["rate=1"])
    assert small.settings["rate"] == 1.0


# ---- functions get each other's results by name ------------------------------------------------------------


def test_functions_get_each_others_results_and_are_called_once():
    calls = []

    def net(data, seed, width=64, *rest, **more):
        """Parameters without a function or value keep their defaults."""
        calls.append("net")
        return data, seed, width, rest, more

    functions = {"net": net, "data": lambda: calls.append("data") or "data", "trainers": lambda: "mine"}
    made = Resolver(functions, {"seed": 7, "trainers": None}, "x.py", lambda name: calls.append(f"{name}:"))
    assert made["net"] == made["net"] == ("data", 7, 64, (), {}) and made["data"] == "data"
    assert calls == ["data:", "data", "net:", "net"] and made["trainers"] == "mine"


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
        ({"net": lambda data: 1, "data": lambda spec: 1, "spec": lambda data: 1},
         {("data", "spec"), ("spec", "data")}),
    ],
)  # fmt: skip
def test_a_circle_is_an_error_that_shows_it(functions, needs):
    with pytest.raises(UsageError, match="functions of x.py need each other in a circle: ") as caught:
        Resolver(functions, {}, "x.py")
    circle = str(caught.value).partition("circle: ")[2].split(" -> ")
    assert set(zip(circle, circle[1:])) == needs and len(circle) == len(needs) + 1
