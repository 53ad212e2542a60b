"""Settings read from text as the type that they have."""

from __future__ import annotations

import json
import math
import types
from contextlib import nullcontext
from typing import Literal, Optional, get_args

import pytest

from multifit.recorded_settings import recorded, restored
from multifit.settings import change_setting, parse_setting, settings_of


@pytest.mark.parametrize(
    ("text", "present", "value"),
    [
        ("7", 20, 7),
        ("-3", 20, -3),
        ("2", 0.5, 2.0),
        ("1e-3", 0.5, 0.001),
        ("adam", "sgd", "adam"),
        ("", "sgd", ""),
        ("7", "sgd", "7"),
        ("no", True, False),
        ("On", False, True),
        ("[1, 2]", (3, 4), (1, 2)),
        ("1, 2", [3], [1, 2]),
        ("5", [3], [5]),
        ("7", None, 7),
        ("resnet", None, "resnet"),
        ("None", None, None),
    ],
)
def test_text_is_parsed_as_the_type_of_the_present_value(text, present, value):
    parsed = parse_setting(text, present)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "present", "message"),
    [
        ("2.5", 20, "must be a whole number"),
        ("many", 0.5, "must be a number"),
        ("perhaps", True, "must be one of true, yes, on, 1, false"),
        ("[1, ", [3], "must be a Python list, such as"),
        ("a b", (3,), "must be a Python list, such as"),
    ],
)
def test_text_of_another_type_is_an_error(text, present, message):
    with pytest.raises(ValueError, match=message):
        parse_setting(text, present)


def test_settings_are_the_public_values_of_simple_types():
    module = types.ModuleType("settings")
    vars(module).update(epochs=20, rate=0.1, sizes=(1, 2), name="x", none=None, flag=True)
    vars(module).update(_hidden=1, table={}, function=len, library=types, KINDS=(1, 2))
    assert list(settings_of(module)) == ["epochs", "rate", "sizes", "name", "none", "flag"]


def test_a_trailing_underscore_avoids_a_functions_name():
    module = types.ModuleType("settings")
    vars(module).update(data_="digits", data=len)
    assert settings_of(module) == {"data": "digits"}
    change_setting(module, "data", "mnist", restored, "digits")
    assert (module.data_, module.data) == ("mnist", len)


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["rate", "rate_"], ["rate", "rate_"]),
        (["rate_", "rate"], ["rate_", "rate"]),
        (["net_"], ["net"]),
        (["net__"], ["net_"]),
        (["net", "net_", "net__"], ["net", "net_", "net__"]),
        (["net_", "net__"], ["net", "net__"]),
    ],
)
def test_each_value_is_a_setting_of_its_own(names, settings):
    module = types.ModuleType("settings")
    vars(module).update(zip(names, range(9)))
    assert settings_of(module) == dict(zip(settings, range(9)))
    for number, (name, setting) in enumerate(zip(names, settings), 10):
        change_setting(module, setting, number, restored, 0)
        assert vars(module)[name] == number
    assert settings_of(module) == dict(zip(settings, range(10, 19)))


@pytest.mark.parametrize("annotation", [Literal["mlp", "lenet"], 'Literal["mlp", "lenet"]'])
def test_a_literal_restricts_the_values(annotation):
    module = types.ModuleType("settings")
    vars(module).update(model="mlp", Literal=Literal, __annotations__={"model": annotation})
    change_setting(module, "model", "lenet", restored, "mlp")
    assert module.model == "lenet"
    with pytest.raises(ValueError, match="must be one of mlp, lenet"):
        change_setting(module, "model", "resnet", restored, "mlp")
    assert module.model == "lenet"


@pytest.mark.parametrize(
    ("choices", "text", "value"),
    [
        (Literal[True, "auto"], "auto", "auto"),
        (Literal[True, "auto"], "yes", True),
        (Literal["auto", False], "off", False),
        (Literal["a", None], "None", None),
        (Literal[None, "a"], "a", "a"),
        (Literal[None, 2], "2", 2),
        (Literal[1, "two"], "two", "two"),
    ],
)
def test_the_values_of_a_literal_may_be_of_several_types(choices, text, value):
    for present in get_args(choices):
        module = types.ModuleType("settings")
        vars(module).update(mode=present, __annotations__={"mode": choices})
        for given, read in ((text, parse_setting), (value, restored)):
            change_setting(module, "mode", given, read, present)
            assert module.mode is value
        with pytest.raises(ValueError, match=f"must be one of {', '.join(map(str, get_args(choices)))}"):
            change_setting(module, "mode", "other", parse_setting, present)
        assert module.mode is value


@pytest.mark.parametrize(
    ("annotation", "written", "text", "value"),
    [
        (float, 1, "0.5", 0.5), ("Optional[float]", 1, "2", 2.0), ("int", 1, "0.5", None),
        ("float", True, "0.5", None), ("float", None, "0.5", 0.5), ("Unknown[1]", 1, "0.5", None),
    ],
)  # fmt: skip
def test_a_float_may_be_written_as_a_whole_number(annotation, written, text, value):
    module = types.ModuleType("settings")
    vars(module).update(rate=written, Optional=Optional, __annotations__={"rate": annotation})
    with nullcontext() if value else pytest.raises(ValueError, match="it must be "):
        change_setting(module, "rate", text, parse_setting, written)
        assert module.rate == value and type(module.rate) is float


@pytest.mark.parametrize("annotation", [str, "str", "Unknown[1]"])
def test_other_annotations_allow_any_value(annotation):
    module = types.ModuleType("settings")
    vars(module).update(model="mlp", __annotations__={"model": annotation})
    change_setting(module, "model", "resnet", restored, "mlp")
    assert module.model == "resnet"


@pytest.mark.parametrize(
    ("value", "present", "expected"),
    [
        (5, 20, 5),
        ("x", None, "x"),
        ([1, 2], [3], [1, 2]),
        ([1, 2], (3,), (1, 2)),
        ([[1, 2], [3]], ((1, 2), (3,)), ((1, 2), (3,))),
        ([[8, "relu"], [6, "tanh"]], [(4, "relu")], [(8, "relu"), (6, "tanh")]),
        ([[8, [3, 3]], 5], [(4, (5, 5)), 5, [1]], [(8, (3, 3)), 5]),
        ([[1, [2]]], [], [[1, [2]]]),
        ([{"size": [3, 3], "more": [1]}], [{"size": (5, 5)}], [{"size": (3, 3), "more": [1]}]),
        ([[1]], ([1],), ([1],)),
        ([1, 0], [1.0, False], [1, 0]),
        ({"python": "(1, (2,))"}, [3], [1, (2,)]),
        ({"python": "[1, (2,)]"}, (3,), (1, (2,))),
    ],
)
def test_tuples_are_restored_from_json(value, present, expected):
    parsed = restored(value, present)
    assert repr(parsed) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [(1, [2, (3,)]), [(8, "relu"), [1, (2,)]], [{"size": (3, {1: (2,)})}], [(1, 2.5, None)], []],
)
def test_an_unchanged_setting_keeps_the_files_own_value(value):
    assert restored(json.loads(json.dumps(value)), value) is value


@pytest.mark.parametrize(
    ("text", "present"),
    [
        ("(4,)", None), ("[1, (2,)]", None), ("{1: (2, {3})}", None), ("{'python': 'x'}", None),
        ("b'x'", None), ("x", None), ("'7'", None), ("None", None), ("[]", None), ("()", None),
        ("1e999", None), ("[[1], 2]", None), ("[1, 2]", (3, (4,))), ("[(1, 2), [3]]", [4, (5,)]),
        ("[(1,), {'a': (2,)}]", (3,)), ("(1, 2)", [3]), ("nan", 0.5), ("-inf", 0.5),
        ("100000000000000000000", 3), ("no", True), ("(1)", "x"), ("\ud800", "x"),
        ("[[1, 2]]", [(3, 4)]), ("[nan]", None), ("[1e999, None]", [(1,)]),
    ],
)  # fmt: skip
def test_what_a_command_line_sets_is_the_same_from_the_record(text, present):
    value = parse_setting(text, present)
    again = restored(json.loads(json.dumps(recorded(value))), present)
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    ("value", "written"),
    [((1, 2), {"python": "(1, 2)"}), ([1, "a"], [1, "a"]), ((math.inf,), (math.inf,)), ([len], [len])],
)
def test_only_what_json_may_change_is_recorded_as_text(value, written):
    assert recorded(value) == written


@pytest.mark.parametrize("text", ["f()", "{[]: 1}", "(", "[" * 9999, 5, None])
def test_a_record_that_is_no_literal_is_an_error(text):
    with pytest.raises(ValueError):
        restored({"python": text}, [1])
