"""Writes a net as a module that needs only torch, or as a program of torch.export."""

import ast
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...engines.prediction import Signature
from ...gluon.compat import mx
from ...gluon.export import export
from ...gluon.export.traced_net import TracedNet
from ...spec import TaskSpec
from ...utils.files import atomic_path, sha256
from ..export import PARAMETERS, PROGRAM, RECORD, _program, _write, _zeros
from .translate import tensors_of, translate

MODULE = "net.py"


class _Net(nn.Module):
    """A translated net, with what is needed to export it: batches of zeros, and which axes are open."""

    def __init__(self, net: TracedNet) -> None:
        super().__init__()
        symbol = mx.sym.Group(list(net.symbols.values())).tojson()
        arrays = {name: value.asnumpy() for name, value in net.parameters.items()}
        self.module = translate(symbol, [*net.inputs], tensors_of(arrays, net.trained), names=net.names)
        self.last = net.inputs
        self.shapes = {
            name: [size if isinstance(size, int) else None for size in port.shape or ()]
            for name, port in net.inputs.items()
        }
        self.example, self.larger = zip(*(
            _zeros(net.example[name], self.shapes[name], getattr(torch, port.dtype))
            for name, port in net.inputs.items()
        ))  # fmt: skip

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.module(*inputs)


def write(
    net: Any,
    spec: TaskSpec,
    sources: Iterable[Sequence[Signature]],
    folder: str | os.PathLike[str],
    format: str,
) -> list[Path]:
    """Write a Gluon net in any format; see :func:`multifit.gluon.export.export.export`."""
    return export.export(net, spec, sources, folder, format, WRITERS)


def _write_program(net: TracedNet, folder: Path) -> list[Path]:
    """Write ``net.pt2``, which contains ``export.json`` as an extra file.

    If the program takes batches of one size only, that is logged. Raises SpecError if operators have no
    translation, ValueError if `torch.export` cannot export the net, and OSError if the file cannot be
    written.
    """
    program = _program(_Net(net), "the net as a module instead")
    with atomic_path(folder / PROGRAM) as temporary:
        extra = {RECORD: json.dumps({"format": "pt2", **net.description()})}
        _write(temporary, lambda file: torch.export.save(program, file, extra_files=extra))
    return [folder / PROGRAM]


def _write_module(net: TracedNet, folder: Path) -> list[Path]:
    """Write ``net.py``, ``net.pt`` and ``export.json``, which has the hashes of the other two.

    Raises SpecError if operators have no translation, and OSError if a file cannot be written.
    """
    module = _Net(net).module
    text = module_text(module, [*net.symbols])
    tensors = {name: each.detach() for name, each in module.named_buffers()} | dict(module.named_parameters())
    paths = [folder / name for name in (RECORD, PARAMETERS, MODULE)]
    with ExitStack() as files:
        # The files are renamed in reverse order, once all three are written; the record is the last.
        record, parameters, source = (files.enter_context(atomic_path(path)) for path in paths)
        source.write_text(text, "utf-8")
        _write(parameters, lambda file: torch.save(tensors, file))
        content = {"format": "torch", "module": MODULE, "parameters": PARAMETERS, **net.description()}
        content["sha256"] = {MODULE: sha256(source), PARAMETERS: sha256(parameters)}
        record.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return sorted(paths)


WRITERS: Mapping[str, export.Writer] = {**export.WRITERS, "torch": _write_module, "pt2": _write_program}


HEADER = '''"""A net exported by multifit. It needs only torch, and you may change it.

    net = load()  # with the parameters in the file beside this one
    outputs = net({inputs})  # a dict of tensors: {outputs}

The net is in evaluation mode; `net.train()` turns on dropout and updates running statistics.
"""

from __future__ import annotations

import math
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Optional

import torch
import torch.nn.functional as F
'''

CLASS = '''class Net(torch.nn.Module):
    """Maps {inputs} to a dict of {outputs}; `tensors` are its parameters and buffers, by path."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            module = self
            for each in path:
                if not hasattr(module, each):
                    module.add_module(each, torch.nn.Module())
                module = getattr(module, each)
            if isinstance(tensor, torch.nn.Parameter):
                module.register_parameter(last, tensor)
            else:
                module.register_buffer(last, tensor)
        self.eval()

    def forward({signature}):
{body}


def load(path: str | Path = Path(__file__).with_name("net.pt")) -> Net:
    """Return the net with its parameters. No code in their file is run."""
    return Net(torch.load(path, map_location="cpu", weights_only=True))
'''


def module_text(module: torch.fx.GraphModule, outputs: Sequence[str]) -> str:
    """Return the text of ``net.py`` for a translated net, whose outputs have these names."""
    code = module.graph.python_code("self")
    package = __name__.split(".")[0]
    ours = {
        n: f for n, f in code.globals.items() if (getattr(f, "__module__", None) or "").startswith(package)
    }
    source = code.src
    for name, function in ours.items():
        source = source.replace(f"{name}(", f"_ops.{function.__name__}(")
    source = source.replace("training = False", "training=self.training")
    source = re.sub(r";  [\w, =]+ = None", "", source)  # fx frees variables that are not used any more
    match = re.search(r"def forward\((.*?)\).*?:\n(.*)return \((.*?)\)$", source.strip(), re.DOTALL)
    assert match is not None
    signature, lines, returned = match.groups()
    values = [each.strip() for each in returned.rstrip(",").split(",")]
    pairs = ", ".join(f"{name!r}: {value}" for name, value in zip(outputs, values))
    body = "".join(f"    {line}\n" for line in lines.splitlines() if line.strip())
    listed = ", ".join(outputs).replace("\\", r"\\").replace('"', r"\"")  # in docstrings
    words = {"inputs": signature.removeprefix("self, "), "outputs": listed}
    names = ", ".join(f"{each.__name__}={each.__name__}" for each in ours.values())
    sections = [
        HEADER.format(**words),
        collect_sources(ours.values()) + "\n",
        f"_ops = SimpleNamespace({names})\n",  # in `forward`, tensors may have the names of functions
        CLASS.format(**words, signature=signature, body=f"{body}        return {{{pairs}}}"),
    ]
    return "\n\n".join(sections)


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
