"""The command's door: help, unknown commands, ``python -m``."""

from __future__ import annotations

import runpy
import sys

import pytest

from multifit.cli import main


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["check", "--help"], ["predict", "--help"], ["evaluate", "--help"]],
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0 and "usage: multifit" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["trian", "x.py"], ["train"], ["train", "x.py", "--epochs", "few"], ["evaluate", "x.py"]],
)
def test_a_wrong_command_line_shows_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and "usage: multifit" in capsys.readouterr().err


def test_python_m(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["multifit", "check", "nothing.py"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("multifit.cli", run_name="__main__")
    assert caught.value.code == 2 and "there is no file nothing.py" in capsys.readouterr().err
