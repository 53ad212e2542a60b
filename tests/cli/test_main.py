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
        ("", "required: command"),
        ("trian x.py", "invalid choice: 'trian' (choose from"),
        ("train", "required: file"),
        ("train x.py --ouput=runs", "unrecognized arguments: --ouput=runs"),
        ("train x.py --epochs few", "--epochs: few is not a whole number of at least 1"),
        ("train x.py --seeds 0", "--seeds: 0 is not a whole number of at least 1"),
        ("train x.py --checkpoint-every 3epoches", '"3epoches" is not a schedule; give one such'),
        ("train x.py --checkpoint-every 0epochs", '"0epochs" is not a schedule; give one such'),
        ("train x.py --figures val_(", '"val_(" is not a regular expression: '),
        ("train x.py --resume --overwrite", "not allowed with argument --resume"),
        ("export x.py --format caffe", "invalid choice: 'caffe'"),
        ("evaluate x.py", "required: --from"),
        ("check --set rate=1 x.py", '--set: "x.py" is not NAME=VALUE; --set takes all that follows'),
        ("predict x.py --set rate=1 1,2,3", "follows it: give files and inputs before it"),
    ],
)
def test_a_wrong_command_line_shows_the_usage(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments.split())
    shown = capsys.readouterr().err
    assert caught.value.code == 2 and "usage: multifit" in shown and message in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_has_what_is_needed_in_an_order_that_works(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    usage = f"usage: multifit {command} {COMMANDS[command][0]} [options]"
    assert capsys.readouterr().out.splitlines()[0] == usage


WITHOUT_MXNET = """
import sys
sys.modules["mxnet"] = None
from multifit.cli import main
for arguments in (["--version"], ["train", "x.py"], ["tasks", "--help"]):
    try:
        print(main(arguments))
    except SystemExit as error:
        print(error.code)
"""


def test_where_mxnet_cannot_be_imported():
    command = [sys.executable, "-c", WITHOUT_MXNET]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    version, of_version, of_train, *usage, of_tasks = done.stdout.splitlines()
    torch = metadata.version("torch") if find_spec("torch") else "not installed"
    libraries = f"mxnet {metadata.version('mxnet')}, torch {torch}"
    assert version == f"multifit {__version__}, {libraries}, Python {platform.python_version()}"
    assert done.stderr == "multifit: there is no file x.py\n" and usage[0].startswith("usage: multifit tasks")
    assert (of_version, of_train, of_tasks) == ("0", "2", "0")


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


class Interrupts:
    """Ctrl-C while the command line is imported, or while a function of it runs."""

    def __call__(self, *_):
        raise KeyboardInterrupt

    def find_spec(self, name, path=None, target=None):
        if name == "multifit.cli":
            raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["import_module", "print_error", "multifit.cli"])
def test_ctrl_c_ends_quietly_at_any_time(monkeypatch, capsys, place):
    monkeypatch.setattr(sys, "argv", ["multifit", "check", "nothing.py"])
    if place == "multifit.cli":
        monkeypatch.delitem(sys.modules, place)
        monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    else:
        monkeypatch.setattr(f"multifit.cli.{place}", Interrupts())
    assert run() == 130
    assert capsys.readouterr().err == "multifit: interrupted\n"
