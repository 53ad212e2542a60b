"""Prepare the package for the reference: docstrings become Markdown, and signatures show real types."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|meth|class|mod|math):`(?:~[\w.]+\.)?([^`]+`)")
CHOICES = re.compile(
    r"^(\w[\w, ]* : )\{(.+?)(?:, ([^,]+))?\}", re.MULTILINE
)  # the first would be shown as default
FORMULA = re.compile(r"^\.\. math::\s*((?:.+\n?)(?:[ \t]+.+\n?)*)", re.MULTILINE)
KEPT = "multifit.utils.protocols."  # the names that the page on types explains


class Markdown(griffe.Extension):
    """Rewrite docstrings, roles and formulas as code, before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            text = ROLE.sub(r"`\1", obj.docstring.value)
            text = CHOICES.sub(
                lambda found: f"{found[1]}{' or '.join(filter(None, found.group(2, 3)))}", text
            )
            obj.docstring.value = FORMULA.sub(lambda formula: f"```text\n{formula[1].strip()}\n```\n", text)


class Types(griffe.Extension):
    """Write out the package's own names for types, and constants that are defaults; leave out bounds."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the signatures of a package that was loaded."""
        self._rewrite(pkg, pkg)

    def _rewrite(self, scope: Any, package: griffe.Module) -> None:
        for member in scope.members.values():
            if member.is_alias:
                continue
            if member.is_function:
                for parameter in list(member.parameters):
                    if parameter.name == "unknown":  # it raises an error
                        del member.parameters["unknown"]
                    parameter.annotation = written_out(parameter.annotation, package)
                    if isinstance(parameter.default, griffe.ExprName):
                        parameter.default = written_out(parameter.default, package)
                member.returns = written_out(member.returns, package)
            elif member.is_attribute:
                member.annotation = written_out(member.annotation, package)
            else:
                self._rewrite(member, package)


def written_out(expression: Any, package: griffe.Module) -> Any:
    """Return an expression with the values of the package's names in their place."""
    if isinstance(expression, griffe.ExprSubscript) and str(expression.left).endswith("Annotated"):
        return written_out(expression.slice.elements[0], package)
    if isinstance(expression, griffe.ExprName):
        found = constant(expression.canonical_path, package)
        return expression if found is None else written_out(found, package)
    if isinstance(expression, (list, tuple)):
        return type(expression)(written_out(each, package) for each in expression)
    if isinstance(expression, griffe.Expr):
        names = [field.name for field in fields(expression) if field.name != "parent"]
        return replace(
            expression, **{name: written_out(getattr(expression, name), package) for name in names}
        )
    return expression


def constant(path: str, package: griffe.Module) -> Any:
    """Return the value that a module of the package gives to a name; None if it gives it none."""
    if path.startswith("multifit.") and not path.startswith(KEPT):
        with suppress(KeyError, griffe.AliasResolutionError):
            found = package[path.removeprefix("multifit.")]
            return found.value if found.is_attribute else None
    return None
