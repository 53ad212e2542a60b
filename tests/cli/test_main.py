"""The command itself: help, wrong arguments, --version, ``python -m multifit``."""

import os
import platform
import runpy
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from multifit import __version__
from multifit.__main__ import run
from multifit.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: command"),
        (["trian", "x.py"], "invalid choice: 'trian' (choose from"),
        (["train"], "required: file"),
        (["train", "x.py", "--ouput=runs"], "unrecognized arguments: --ouput=runs"),
        (["train", "x.py", "--epochs", "few"], "--epochs: few is not a whole number of at least 1"),
        (["profile", "x.py", "--batches", "0"], "--batches: 0 is not a whole number of at least 1"),
        (["train", "x.py", "--checkpoint-every", "3epoches"], '"3epoches" is not a schedule; give one such'),
        (["train", "x.py", "--checkpoint-every", "0epochs"], '"0epochs" is not a schedule; give one such'),
        (["train", "x.py", "--figures", "val_("], '"val_(" is not a regular expression: '),
        (["train", "x.py", "--resume", "--overwrite"], "not allowed with argument --resume"),
        (["export", "x.py", "--format", "caffe"], "invalid choice: 'caffe'"),
        (["evaluate", "x.py"], "required: --from"),
        (
            ["check", "--set", "rate=1", "x.py"],
            '--set: "x.py" is not NAME=VALUE; --set takes all that follows',
        ),
        (["predict", "x.py", "--set", "rate=1", "1,2,3"], "follows it: give files and inputs before it"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    shown = capsys.readouterr().err
    assert caught.value.code == 2 and "usage: multifit" in shown and message in shown


@pytest.mark.parametrize(
    ("command", "usage"), [(name, f"{name} {needed} [options]") for name, (needed, _) in COMMANDS.items()]
)
def test_the_usage_has_what_is_needed_in_an_order_that_works(command, usage, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.splitlines()[0] == f"usage: multifit {usage}"


TORCH = metadata.version("torch") if find_spec("torch") else "not installed"
VERSIONS = (
    f"multifit {__version__}, mxnet {metadata.version('mxnet')}, torch {TORCH}, "
    f"Python {platform.python_version()}"
)
WITHOUT_MXNET = """
import sys
sys.modules["mxnet"] = None
from multifit.__main__ import run
sys.exit(run())
"""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--version"], 0, VERSIONS),
        (["train", "x.py"], 2, "there is no file x.py"),
        (["tasks", "--help"], 0, "usage: multifit tasks file"),
    ],
)  # fmt: skip
def test_where_mxnet_cannot_be_imported(arguments, code, message):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_MXNET, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if arguments == ["--version"]:
        assert done.stdout == f"{message}\n"
    printed = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code and " ".join(message.split()) in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("environment", "expected"), [({}, ("7", None)), ({"MXNET_OMP_MAX_THREADS": "3"}, (None, "3"))]
)
def test_python_m_uses_all_cores_unless_the_environment_sets_a_number(
    monkeypatch, capsys, environment, expected
):
    monkeypatch.setattr("multifit.utils.threads.usable_cores", lambda: 7)
    monkeypatch.setattr(sys, "argv", ["multifit", "check", "nothing.py"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", dict(environment))
        with pytest.raises(SystemExit) as caught:
            runpy.run_module("multifit", run_name="__main__")
        values = tuple(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"))
    assert caught.value.code == 2 and "there is no file nothing.py" in capsys.readouterr().err
    assert values == expected


@pytest.mark.parametrize("place", ["import_module", "print_error"])
def test_ctrl_c_ends_quietly_at_any_time(monkeypatch, capsys, place):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["multifit", "check", "nothing.py"])
    monkeypatch.setattr(f"multifit.cli.{place}", interrupted)
    assert run() == 130
    assert capsys.readouterr().err == "multifit: interrupted\n"


def test_ctrl_c_while_the_command_line_is_imported_ends_quietly(monkeypatch, capsys):
    class Interrupted:
        def find_spec(self, name, path=None, target=None):
            if name == "multifit.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "multifit.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert run() == 130
    assert capsys.readouterr().err == "multifit: interrupted\n"
