"""Writes a net as a module that needs only torch, or as a program of torch.export."""

import ast
import inspect
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ...files import atomic_path, sha256
from ...protocols import Numbers
from .translate import tensors_of, translate


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
    """Maps {inputs} to a dict of {outputs}."""

    def __init__(self) -> None:
        super().__init__()
        for name, (shape, dtype, trained) in TENSORS.items():
            *path, last = name.split(".")
            module = self
            for each in path:
                if not hasattr(module, each):
                    module.add_module(each, torch.nn.Module())
                module = getattr(module, each)
            tensor = torch.empty(shape, dtype=dtype)
            if trained:
                module.register_parameter(last, torch.nn.Parameter(tensor))
            else:
                module.register_buffer(last, tensor)
        self.eval()

    def forward({signature}):
{body}

'''

LOAD = '''def load(path: str | Path = Path(__file__).with_name("{parameters}")) -> Net:
    """Return the net with its parameters. No code in their file is run."""
    net = Net()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return net
'''


def module_text(module: fx.GraphModule, outputs: Sequence[str], parameters: str) -> str:
    """Return the file's text.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The result of :func:`multifit.torch.from_gluon.translate.translate`, in evaluation mode.
    outputs : sequence of str
        The names of the outputs of `forward`.
    parameters : str
        The name of the file that holds the module's ``state_dict``.
    """
    code = module.graph.python_code("self")
    ours = {name: each for name, each in code.globals.items() if _is_ours(each)}
    signature, body = _body(code.src, ours, outputs)
    listed = ", ".join(outputs).replace("\\", r"\\").replace('"', r"\"")  # in docstrings
    words = {"inputs": signature.removeprefix("self, "), "outputs": listed}
    names = ", ".join(f"{each.__name__}={each.__name__}" for each in ours.values())
    sections = [
        HEADER.format(**words),
        collect_sources(ours.values()) + "\n",
        f"_ops = SimpleNamespace({names})",  # in `forward`, tensors may have the names of functions
        _tensors(module),
        CLASS.format(**words, signature=signature, body=body),
        LOAD.format(parameters=parameters),
    ]
    return "\n\n".join(sections)


def _is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").startswith(__name__.split(".")[0])


def _body(source: str, ours: Mapping[str, Any], outputs: Sequence[str]) -> tuple[str, str]:
    """Return the arguments and the lines of `forward`."""
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
    return signature, f"{body}        return {{{pairs}}}"


def _tensors(module: torch.nn.Module) -> str:
    parameters = {name for name, _ in module.named_parameters()}
    lines = [
        f"    {name!r}: ({tuple(tensor.shape)}, {tensor.dtype}, {name in parameters}),"
        for name, tensor in module.state_dict().items()
    ]
    return "\n".join(["# name: (shape, type, whether it is trained)", "TENSORS = {", *lines, "}", ""])


MODULE, PARAMETERS, PROGRAM, RECORD = "net.py", "net.pt", "net.pt2", "export.json"


@dataclass(frozen=True)
class PlainNet:
    """A net in evaluation mode, as plain data.

    Parameters
    ----------
    symbol : str
        The JSON of a symbol with the outputs in their order.
    example : mapping of str to (shape, dtype)
        The shape and dtype of each input in one batch.
    open_axes : mapping of str to sequence of int
        The axes of each input that may have any size.
    outputs : sequence of str
        The names of the symbol's outputs.
    arrays : mapping of str to numpy.ndarray
        The values of all other variables.
    names : mapping of str to str
        The structural names of these variables.
    trained : sequence of str
        The variables that receive gradients.
    record : mapping
        The description of inputs, outputs and versions for ``export.json``.
    """

    symbol: str
    example: Mapping[str, tuple[tuple[int, ...], str]]
    open_axes: Mapping[str, Sequence[int]]
    outputs: Sequence[str]
    arrays: Mapping[str, Numbers]
    names: Mapping[str, str]
    trained: Sequence[str]
    record: Mapping[str, Any]


def write_module(net: PlainNet, folder: Path) -> list[Path]:
    """Write ``net.py``, ``net.pt`` and ``export.json``, which has the hashes of the other two.

    Raises SpecError if operators have no translation, and OSError if a file cannot be written.
    """
    module = _translated(net)
    text = module_text(module, net.outputs, PARAMETERS)
    paths = [folder / name for name in (RECORD, PARAMETERS, MODULE)]
    with ExitStack() as files:
        # The files are renamed in reverse order, once all three are written; the record is the last.
        record, parameters, source = (files.enter_context(atomic_path(path)) for path in paths)
        source.write_text(text, "utf-8")
        _write(parameters, lambda file: torch.save(dict(module.state_dict()), file))
        hashes = {MODULE: sha256(source), PARAMETERS: sha256(parameters)}
        content = {
            "format": "torch",
            "module": MODULE,
            "parameters": PARAMETERS,
            **net.record,
            "sha256": hashes,
        }
        record.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return sorted(paths)


def write_program(net: PlainNet, folder: Path) -> list[Path]:
    """Write ``net.pt2``, which contains ``export.json`` as an extra file.

    If the program takes batches of one size only, that is logged. Raises SpecError if operators have no
    translation, ValueError if `torch.export` cannot export the net, and OSError if the file cannot be
    written.
    """
    module = _translated(net)
    auto = getattr(torch.export.Dim, "AUTO", None)  # before torch 2.6, sizes are those of the batch
    sizes = tuple(dict.fromkeys(net.open_axes[name], auto) for name in net.example) if auto else None
    has_one = any(shape[axis] == 1 for n, (shape, _) in net.example.items() for axis in net.open_axes[n])
    times = 2 if auto and has_one else 1  # torch.export treats a size of 1 as a constant
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, _batch(net, times), dynamic_shapes=sizes, strict=False)
    except Exception as error:
        raise ValueError(
            f"torch.export failed ({type(error).__name__}: {_first_line(error)}); "
            'format="torch" writes the net as a module instead'
        ) from error
    _log_fixed_sizes(net, program, times)
    with atomic_path(folder / PROGRAM) as temporary:
        record = json.dumps({"format": "pt2", **net.record})
        _write(temporary, lambda file: torch.export.save(program, file, extra_files={RECORD: record}))
    return [folder / PROGRAM]


def _write(path: Path, save: Callable[[io.BytesIO], None]) -> None:
    """Write what a function of torch saves; on a full disk, torch's own writer would end the process.

    Raises OSError if the file cannot be written.
    """
    file = io.BytesIO()
    save(file)
    path.write_bytes(file.getbuffer())


def _batch(net: PlainNet, times: int) -> tuple[torch.Tensor, ...]:
    """Return a batch of zeros, `times` as large as the example along all axes that may have any size."""
    tensors = []
    for name, (shape, dtype) in net.example.items():
        sizes = [size * times if axis in net.open_axes[name] else size for axis, size in enumerate(shape)]
        tensors.append(torch.zeros(sizes, dtype=getattr(torch, dtype)))
    return tuple(tensors)


def _log_fixed_sizes(net: PlainNet, program: torch.export.ExportedProgram, times: int) -> None:
    """Log a warning if a program refuses a larger batch than the one with which it was made."""
    try:
        program.module()(*_batch(net, 2 * times))
    except Exception as error:  # what it raises differs between versions of torch
        made_with = zip(net.example, _batch(net, times))
        shapes = ", ".join(f'"{name}" {tuple(tensor.shape)}' for name, tensor in made_with)
        logging.getLogger("multifit").warning(
            f"{PROGRAM} takes batches of these sizes only: {shapes}, because torch.export fixed them: "
            f'{_first_line(error)}; format="torch" writes a net that takes any'
        )


def _first_line(error: Exception) -> str:
    """Return the first line of an error; below, torch describes the place in the graph."""
    return next(iter(str(error).strip().splitlines()), "no message")


def _translated(net: PlainNet) -> torch.fx.GraphModule:
    tensors = tensors_of(net.arrays, net.trained)
    return translate(net.symbol, list(net.example), tensors, names=net.names)
