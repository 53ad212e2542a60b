"""Settings read from text as the type that they have."""

from __future__ import annotations

import types

import pytest

from multifit.settings import parse_setting, settings_of


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
def test_a_value_takes_the_type_of_the_present_one(text, present, value):
    found = parse_setting(text, present)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "present", "message"),
    [
        ("2.5", 20, "must be a whole number"),
        ("many", 0.5, "must be a number"),
        ("perhaps", True, "must be one of true, yes, on, 1, false"),
        ("[1, ", [3], "must be a list as in Python"),
        ("a b", (3,), "must be a list as in Python"),
    ],
)
def test_a_value_of_another_type_is_refused(text, present, message):
    with pytest.raises(ValueError, match=message):
        parse_setting(text, present)


def test_settings_are_the_public_plain_values():
    module = types.ModuleType("settings")
    vars(module).update(epochs=20, rate=0.1, sizes=(1, 2), name="x", none=None, flag=True)
    vars(module).update(_hidden=1, table={}, function=len, library=types)
    assert list(settings_of(module)) == ["epochs", "rate", "sizes", "name", "none", "flag"]
