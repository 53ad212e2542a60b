"""Write a translated net as the text of a Python file that needs only torch."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import fx

from .sources import collect_sources

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
        The result of :func:`multifit.torch.translate.translate`, in evaluation mode.
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
    sections = [
        HEADER.format(**words),
        collect_sources(ours.values()) + "\n",
        _name_space(ours.values()),
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


def _name_space(functions: Iterable[Any]) -> str:
    """Return a line that puts functions into a name space: in `forward`, tensors may have the same names."""
    pairs = ", ".join(f"{each.__name__}={each.__name__}" for each in functions)
    return f"_ops = SimpleNamespace({pairs})"


def _tensors(module: torch.nn.Module) -> str:
    parameters = {name for name, _ in module.named_parameters()}
    lines = [
        f"    {name!r}: ({tuple(tensor.shape)}, {tensor.dtype}, {name in parameters}),"
        for name, tensor in module.state_dict().items()
    ]
    return "\n".join(["# name: (shape, type, whether it is trained)", "TENSORS = {", *lines, "}", ""])
