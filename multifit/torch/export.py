"""Writes a net for use elsewhere: its parameters, or a program that needs none of its code."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..engines.prediction import Signature
from ..spec.checks.results import at_path, bind_outputs
from ..utils.errors import SpecError, raise_problems
from ..utils.files import atomic_path, atomic_write, sha256
from ..utils.text import quoted
from ..version import __version__
from .added_slots import dtype_name

if TYPE_CHECKING:
    from .session import Session

PARAMETERS, RECORD, PROGRAM, ONNX = "net.pt", "export.json", "net.pt2", "net.onnx"
WITHOUT_CODE = "the parameters, for use with the code of the net"


def export(
    session: Session, sources: Iterable[Sequence[Signature]], folder: str | os.PathLike[str], format: str
) -> list[Path]:
    """Write the net in evaluation mode; see :meth:`multifit.MultiEstimator.export`.

    The net itself does not change. Samples are along the first axis, which may have any size, and so may an
    axis whose size differed between the batches so far. `sources` are signatures of batches, of which the
    first are used.
    """
    if format not in WRITERS:
        valid = f"valid for a PyTorch net are {quoted(WRITERS)}"
        raise ValueError(f'export: format="{format}" is for Gluon nets; {valid}')
    for package in ("onnx", "onnxscript") if format == "onnx" else ():
        if find_spec(package) is None:
            raise ImportError(f"exporting to ONNX needs {package}: pip install onnx onnxscript")
    spec = session.spec.evaluation
    if spec.state and format != "torch":
        raise SpecError(
            f"export: {quoted(spec.state)} come from the previous batch (state=), which the format cannot "
            'express; export a net that starts from zeros itself, or its parameters, with format="torch"'
        )
    net = _Net(session, next(iter(sources), []))
    if session.model.is_lazy or (format != "torch" and not net.example):
        raise ValueError(
            f"export: the shapes of the inputs {quoted(spec.inputs)} are not known; fit, check or evaluate "
            "first, or give data: export(folder, data)"
        )
    with session.model.kept_modes(), torch.no_grad():
        return WRITERS[format](net.eval(), Path(folder))


def _zeros(shape: Sequence[int], known: Sequence[int | None], dtype: Any) -> tuple[Tensor, Tensor]:
    """Return zeros of a shape, and of one that is twice as long where the size is not `known`."""
    # torch.export takes a size of 1 for a constant
    small = [max(n, 2) if size is None else n for n, size in zip(shape, known)]
    double = [2 * n if size is None else n for n, size in zip(small, known)]
    return torch.zeros(small, dtype=dtype), torch.zeros(double, dtype=dtype)


class _Net(nn.Module):
    """The net on the CPU as it is exported: it takes the inputs in order, and returns its outputs by name.

    `shapes` are those of the inputs that are not None in the last of the `signatures`, with None for an axis
    that may have any size. `example` are inputs of zeros; such axes are twice as long in `larger`.
    """

    def __init__(self, session: Session, signatures: Sequence[Signature]) -> None:
        super().__init__()
        net = getattr(session.model.net, "_orig_mod", session.model.net)  # what was compiled
        self.net: Any = net if session.model.device.type == "cpu" else copy.deepcopy(net).cpu()
        self.spec = session.spec.evaluation
        forms = [{n: each[n] for n in self.spec.inputs if each[n] is not None} for each in signatures]
        self.last: Signature = forms[-1] if forms else {}
        axes = {name: len(shape) for name, (shape, _) in self.last.items()}
        alike = [each for each in forms if {name: len(slot[0]) for name, slot in each.items()} == axes]
        self.shapes: dict[str, list[int | None]] = {}
        examples: list[tuple[Tensor, Tensor]] = []
        for name, (shape, dtype) in self.last.items():
            sizes = zip(*(each[name][0] for each in alike))
            self.shapes[name] = [
                None if axis == 0 or len(set(found)) > 1 else found[0] for axis, found in enumerate(sizes)
            ]
            examples.append(_zeros(shape, self.shapes[name], dtype))
        self.example = tuple([small for small, _ in examples])
        self.larger = tuple([double for _, double in examples])

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        tensors = dict(zip(self.last, inputs))
        slots = {name: tensors.get(name) for name in self.spec.inputs}
        function = self.spec.forward
        result = self.net(*slots.values()) if function is None else function(self.net, slots)
        paths, problems = bind_outputs(self.spec.outputs, result, "the net that is exported")
        raise_problems(problems)
        return {name: at_path(result, paths[name]) for name in self.spec.output_names}

    def record(self, format: str) -> dict[str, Any]:
        """Return the description of the files."""
        slots = self.last.items()
        known = [{"name": n, "shape": self.shapes[n], "dtype": dtype_name(dtype)} for n, (_, dtype) in slots]
        return {
            "format": format,
            "inputs": known or [{"name": name} for name in self.spec.inputs],
            "outputs": [{"name": name} for name in self.spec.output_names],
            "versions": {"multifit": __version__, "torch": str(torch.__version__)},
        }


def _write_parameters(net: _Net, folder: Path) -> list[Path]:
    paths = [folder / RECORD, folder / PARAMETERS]
    state = net.net.state_dict()
    with ExitStack() as files:
        # The files are renamed in reverse order, once both are written; the record is the last.
        record, parameters = (files.enter_context(atomic_path(path)) for path in paths)
        _write(parameters, lambda file: torch.save(state, file))
        hashes = {PARAMETERS: sha256(parameters)}
        content = {**net.record("torch"), "parameters": PARAMETERS, "sha256": hashes}
        record.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
    return paths


def _write_program(net: _Net, folder: Path) -> list[Path]:
    program = _program(net)
    with atomic_path(folder / PROGRAM) as temporary:
        extra = {RECORD: json.dumps(net.record("pt2"))}
        _write(temporary, lambda file: torch.export.save(program, file, extra_files=extra))
    return [folder / PROGRAM]


def _write_onnx(net: _Net, folder: Path) -> list[Path]:
    names = {"input_names": list(net.last), "output_names": list(net.spec.output_names)}
    program = _program(net)
    with _exporting("torch.onnx"):
        content = torch.onnx.export(program, **names, verbose=False).model_proto.SerializeToString()
    atomic_write(folder / ONNX, content)
    return [folder / ONNX]


WRITERS: Mapping[str, Callable[[_Net, Path], list[Path]]] = {
    "torch": _write_parameters,
    "pt2": _write_program,
    "onnx": _write_onnx,
}


def _program(net: Any, instead: str = WITHOUT_CODE) -> Any:
    """Return the net as a program of `torch.export`; logs a warning if it takes batches of one size only.

    Raises ValueError if the net cannot be exported.
    """
    auto = torch.export.Dim.AUTO
    sizes = [{axis: auto for axis, n in enumerate(shape) if n is None} for shape in net.shapes.values()]
    with _exporting("torch.export", instead):
        shapes = {"inputs": tuple(sizes)}
        program = torch.export.export(net, net.example, dynamic_shapes=shapes, strict=False)
    try:
        program.module()(*net.larger)
    except Exception as error:  # what it raises differs between versions of torch
        example = ", ".join(f'"{n}" {tuple(each.shape)}' for n, each in zip(net.last, net.example))
        logging.getLogger("multifit").warning(
            f"the exported net takes batches of these sizes only: {example}, because torch.export fixed "
            f"them: {_first_line(error)}"
        )
    return program


@contextmanager
def _exporting(what: str, instead: str = WITHOUT_CODE) -> Iterator[None]:
    """Raise torch's errors as ValueError, with what `format="torch"` writes instead; without its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except SpecError:
        raise
    except Exception as error:
        raise ValueError(
            f'{what} failed ({type(error).__name__}: {_first_line(error)}); format="torch" writes {instead}'
        ) from error


def _write(path: Path, save: Callable[[io.BytesIO], None]) -> None:
    """Write what a function of torch saves; on a full disk, torch's own writer would end the process."""
    file = io.BytesIO()
    save(file)
    path.write_bytes(file.getbuffer())


def _first_line(error: Exception) -> str:
    """Return the first line of an error; below, torch describes the place in the graph."""
    return next(iter(str(error).strip().splitlines()), "no message")
