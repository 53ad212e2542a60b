"""The wall: mxnet under multifit/gluon only; imports go downwards; no circles."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).parents[1] / "multifit"
FILES = sorted(ROOT.rglob("*.py"))

# From the bottom to the top: a layer imports itself and what stands before it.
LAYERS = [
    "errors", "stages", "protocols", "arguments", "files", "threads", "checkpoints", "tables", "settings",
    "spec", "checks", "plan", "state", "triggers", "history", "plots", "profile", "events", "handlers",
    "gluon", "losses", "metrics", "schedules", "estimator", "taskfile", "report", "exports", "__init__",
    "cli", "__main__",
]  # fmt: skip
# Tighter than the order says: what knows mxnet takes events for the sake of its own handlers only.
ONLY = {
    "gluon": {
        "errors", "stages", "protocols", "arguments", "files", "threads", "tables", "spec", "checks", "plan",
        "state", "triggers", "plots", "profile", "events",
    },
}  # fmt: skip
ENGINE = {"mxnet", "gluoncv", "gluonnlp"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imports(module: str, package: bool, code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (absolute module, names taken from it) for each import that runs; not those for type checkers."""
    home = module.split(".") if package else module.split(".")[:-1]
    waiting: list[ast.AST] = [ast.parse(code)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            yield ".".join([*base, *filter(None, [node.module])]), [alias.name for alias in node.names]
        else:
            waiting += list(ast.iter_child_nodes(node))


def imports_of(path: Path) -> list[tuple[str, list[str]]]:
    return list(imports(module_name(path), path.name == "__init__.py", path.read_text("utf-8")))


def ours(found: list[tuple[str, list[str]]]) -> set[str]:
    """Return the modules of multifit among imports; ``from . import x`` is x where x is a module."""
    modules = set()
    for module, taken in found:
        parts = {f"{module}.{name}" for name in taken if f"{module}.{name}" in MODULES}
        modules |= parts
        if module in MODULES and len(parts) < max(1, len(taken)):
            modules.add(module)
    return modules


def layer(module: str) -> str:
    return (module.split(".") + ["__init__"])[1]


def test_every_layer_has_its_place():
    assert {layer(module) for module in MODULES} <= set(LAYERS), "give the new layer a place in LAYERS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_mxnet_is_imported_under_gluon_only(path):
    if path.relative_to(ROOT).parts[0] == "gluon":
        return
    for module, taken in imports_of(path):
        assert module.split(".")[0] not in ENGINE, f"{path.name} imports {module}"
        assert "mx" not in taken, f"{path.name} takes mx from {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downwards(path):
    own = layer(module_name(path))
    below = ONLY.get(own, set(LAYERS[: LAYERS.index(own)]))
    for module in ours(imports_of(path)):
        assert layer(module) == own or layer(module) in below, f"{path.name} ({own}) imports {module}"


def test_there_is_no_circle():
    graph = {module: ours(imports_of(path)) - {module} for module, path in MODULES.items()}
    while True:
        imported = {needed for needs in graph.values() for needed in needs}
        inner = {module for module, needs in graph.items() if needs & set(graph) and module in imported}
        if inner == set(graph):
            break
        graph = {module: graph[module] for module in inner}
    assert not graph, f"modules import each other in a circle: {sorted(graph)}"


def test_the_reader_of_imports_sees_them():
    """The test of the test: every form of import is found, at any depth, but not one for type checkers."""
    code = """
import mxnet.gluon as g
from . import events
from .spec import TaskSpec
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas
def late():
    from .gluon.compat import mx
"""
    found = list(imports("multifit.imaginary", False, code))
    assert sorted(found) == [
        ("multifit", ["events"]),
        ("multifit.gluon.compat", ["mx"]),
        ("multifit.spec", ["TaskSpec"]),
        ("mxnet.gluon", []),
        ("typing", ["TYPE_CHECKING"]),
    ]
    assert ours(found) == {"multifit.events", "multifit.gluon.compat", "multifit.spec"}
    assert list(imports("multifit.spec", True, "from .names import x")) == [("multifit.spec.names", ["x"])]
