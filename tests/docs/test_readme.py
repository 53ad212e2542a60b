"""The README's code runs, top to bottom, as a reader would type it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    names: dict = {}
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("readme"))  # some of it writes
    try:
        for block in BLOCKS:
            exec(compile(block, str(README), "exec"), names)
    finally:
        os.chdir(before)
    return names


def test_every_block_runs(namespace):
    assert len(BLOCKS) >= 4
    assert len(namespace["history"]["val_digit_accuracy"]) == 2


def test_the_error_that_it_shows_tells_all(namespace, capsys):
    exec(BLOCKS[2], namespace)
    text = capsys.readouterr().out
    assert 'did you mean "digit"?' in text
    assert "the weight is -1" in text
    assert '"parity" is taken by no loss and no metric' in text


def test_commands_that_it_names_exist():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    commands = set(re.findall(r"make (\w+)", README.read_text(encoding="utf-8")))
    assert commands <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
