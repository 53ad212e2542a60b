"""mxnet is imported under gluon/ only, torch under torch/ only; imports go downwards, never in a cycle."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "multifit"
FILES = sorted(ROOT.rglob("*.py"))

# From the bottom to the top: a layer imports itself and what stands before it.
LAYERS = [
    "version", "utils", "checkpoints", "distributed", "sampling", "balance", "spec", "array_batches",
    "handlers", "schedules", "engines", "gluon", "torch", "torch.from_gluon", "losses", "metrics", "loggers",
    "estimator", "sklearn", "__init__", "cli", "__main__",
]  # fmt: skip
# Stricter than the order
BELOW_ENGINES = LAYERS[: LAYERS.index("engines") + 1]
ONLY = {"gluon": set(BELOW_ENGINES) - {"checkpoints"}, "torch": set(BELOW_ENGINES) - {"checkpoints"}}
# The same within gluon/, package by package.
ROOMS = [
    "compat", "user_code", "graph", "losses", "data", "ranks", "optim", "metrics",
    "step", "handler_arrays", "model", "trainers", "balance", "session", "check", "export", "snapshot",
    "engine", "__init__",
]  # fmt: skip
ENGINE = {"mxnet", "gluoncv", "gluonnlp"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# These are checked for cycles only.
BENCHMARKS = sorted((ROOT.parent / "nightly").rglob("*.py"))
MODULES = {module_name(path): path for path in [*FILES, *BENCHMARKS]}


def imports(module: str, package: bool, code: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (absolute module, names taken from it) for each import, but those for type checkers alone."""
    home = module.split(".") if package else module.split(".")[:-1]
    tree = ast.parse(code)
    typing = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            yield ".".join([*base, *filter(None, [node.module])]), [alias.name for alias in node.names]


@cache
def imports_of(path: Path) -> list[tuple[str, list[str]]]:
    return list(imports(module_name(path), path.name == "__init__.py", path.read_text("utf-8")))


def modules_of(imported: list[tuple[str, list[str]]]) -> set[str]:
    """Return our modules among imports; ``from . import x`` is x if x is a module."""
    modules = set()
    for module, names in imported:
        submodules = {f"{module}.{name}" for name in names if f"{module}.{name}" in MODULES}
        modules |= submodules
        if module in MODULES and len(submodules) < max(1, len(names)):
            modules.add(module)
    return modules


def layer(module: str) -> str:
    if module.startswith("multifit.torch.from_gluon"):
        return "torch.from_gluon"  # the rest of torch/ runs without mxnet, and imports nothing of gluon/
    return (module.split(".") + ["__init__"])[1]


def room(module: str) -> str:
    """Return the part of gluon/ that a module is in."""
    return (module.split(".") + ["__init__"] * 2)[2]


def test_every_layer_has_its_place():
    layers = {layer(module_name(path)) for path in FILES}
    assert layers <= set(LAYERS), "give the new layer a place in LAYERS"
    rooms = {room(module_name(path)) for path in FILES if layer(module_name(path)) == "gluon"}
    assert rooms <= set(ROOMS), "give the new room a place in ROOMS"


@pytest.mark.parametrize(("home", "libraries"), [("gluon", ENGINE), ("torch", {"torch"})])
def test_an_engine_is_imported_in_its_own_folder_only(home: str, libraries: set[str]):
    found: dict[bool, list[str]] = {False: [], True: []}
    for path in FILES:
        for module, names in imports_of(path):
            if module.split(".")[0] in libraries or (home == "gluon" and "mx" in names):
                inside = (
                    path.relative_to(ROOT).parts[0] == home or layer(module_name(path)) == "torch.from_gluon"
                )
                found[inside].append(f"{path.relative_to(ROOT)} imports {module}")
    assert found[True] and not found[False]


def test_engines_come_from_their_registry():
    imported = {
        module
        for path in FILES
        if layer(module_name(path)) == "estimator"
        for module in modules_of(imports_of(path))
    }
    assert imported and not {"gluon", "torch", "torch.from_gluon"} & {layer(module) for module in imported}


def test_imports_go_downwards():
    upwards = []
    for path in FILES:
        own, here = layer(module_name(path)), room(module_name(path))
        below = {own, *ONLY.get(own, LAYERS[: LAYERS.index(own)])}
        for module in modules_of(imports_of(path)):
            inside = layer(module) == own == "gluon"
            if layer(module) not in below or (inside and ROOMS.index(room(module)) > ROOMS.index(here)):
                upwards.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not upwards


def cyclic(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that import each other in a cycle, and those between two cycles."""
    while True:
        imported = {needed for needs in graph.values() for needed in needs}
        inner = {module for module, needs in graph.items() if needs & set(graph) and module in imported}
        if inner == set(graph):
            return inner
        graph = {module: graph[module] for module in inner}


def test_there_is_no_cycle():
    graph = {module: modules_of(imports_of(path)) - {module} for module, path in MODULES.items()}
    assert not cyclic(graph)


WITHOUT_ENGINES = """
import sys
import multifit
from importlib import import_module
for name in multifit.__all__:
    getattr(multifit, name)
for name in MODULES:
    import_module(name)
import numpy
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("mxnet", "torch")))
print(sorted(name for name in sys.modules if name.startswith(("multifit.gluon.", "multifit.torch."))))
"""


def test_multifit_needs_an_engine_for_nets_only():
    """Which imports neither, until there is a net: names, modules below the engines, the command line."""
    above = {"gluon", "torch", "torch.from_gluon", "sklearn", "__init__", "__main__"}
    names = sorted(module for module, path in MODULES.items() if path in FILES and layer(module) not in above)
    code = WITHOUT_ENGINES.replace("MODULES", repr(names))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert done.stdout.splitlines() == ["[]", "['multifit.gluon.compat']"]
