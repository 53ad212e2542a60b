"""Docstrings are reStructuredText, but the site is Markdown: show their roles and formulas as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|meth|class|mod|math):`(?:~[\w.]+\.)?([^`]+`)")
FORMULA = re.compile(r"^\.\. math::\s*((?:.+\n?)(?:[ \t]+.+\n?)*)", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            text = ROLE.sub(r"`\1", obj.docstring.value)
            obj.docstring.value = FORMULA.sub(lambda formula: f"```text\n{formula[1].strip()}\n```\n", text)
