"""Collect the source code of operators, with everything of multifit that it uses."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from importlib import import_module
from typing import Any, Callable, Iterable


def collect_sources(functions: Iterable[Callable[..., Any]]) -> str:
    """Return the definitions of functions and of everything that they use, each after those that it uses.

    Imports of other packages are left out.
    """
    found: dict[tuple[str, str], str] = {}
    for function in functions:
        _collect(function.__module__, function.__name__, found, set())
    return "\n\n\n".join(found.values())


def _collect(module: str, name: str, found: dict[tuple[str, str], str], begun: set[tuple[str, str]]) -> None:
    definitions, origins = _definitions(module)
    if name in origins:
        _collect(*origins[name], found, begun)
    elif name in definitions and (module, name) not in {*found, *begun}:
        begun.add((module, name))  # a local variable may have the name of a function that uses this one
        source, used = definitions[name]
        for each in used:
            _collect(module, each, found, begun)
        found[module, name] = source


@cache
def _definitions(module: str) -> tuple[dict[str, tuple[str, list[str]]], dict[str, tuple[str, str]]]:
    """Return the source of a module's definitions with the names used in it, and the origins of imports."""
    text = inspect.getsource(import_module(module))
    definitions: dict[str, tuple[str, list[str]]] = {}
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            origin = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            origins.update({alias.name: (origin, alias.name) for alias in node.names})
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            definitions[node.name] = _definition(text, node)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = _definition(text, node)
    return definitions, origins


def _definition(text: str, node: ast.stmt) -> tuple[str, list[str]]:
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    return ast.get_source_segment(text, node) or "", list(dict.fromkeys(names))
