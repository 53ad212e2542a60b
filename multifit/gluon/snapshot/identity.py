"""What a run is made of, so that a checkpoint is not taken for another run's."""

from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from ...errors import counted, suggest
from ...spec import TaskSpec
from ...spec.summary import summary_rows
from ..optim.schedules import ScaledSchedule

__all__ = ["differences", "identity"]

SHOWN = 6  # of many differences of one kind
EVALUATING = "when evaluating and predicting:"


def identity(engine: Any) -> dict[str, Any]:
    """Return the spec's lines, the parameters, the trainers, the devices' number and the precision, for JSON.

    Raises
    ------
    TrainerError
        The trainers cannot be built.
    """
    trainers = engine.bound_trainers()
    return {
        "spec": _spec_rows(engine.spec),
        "parameters": {name: _form(p) for name, p in engine.parameters.items()},
        "trainers": {
            name: {
                "optimizer": type(trainer.optimizer).__name__,
                "schedule": _schedule(trainer.optimizer.lr_scheduler),
                "holds": list(trainers.held[name]),
            }
            for name, trainer in trainers.items()
        },
        "devices": len(engine.contexts),
        "precision": engine.precision.name,
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for everything in which two identities differ; none where a run can go on.

    Parameters
    ----------
    saved, now : mapping
        What :func:`identity` returned when the checkpoint was written, and what it returns here. A size that
        is not known yet, of a parameter that no batch has reached, is like any other.
    """
    lines = _compared("spec,", _spec_texts(saved["spec"]), _spec_texts(now["spec"]))
    lines += _compared(
        "parameter", _forms(saved["parameters"]), _forms(now["parameters"], saved["parameters"])
    )
    kinds = [{name: _kind(t) for name, t in one["trainers"].items()} for one in (saved, now)]
    lines += _compared("trainer", *kinds)
    for name in (name for name in saved["trainers"] if name in now["trainers"]):
        held = [dict.fromkeys(one["trainers"][name]["holds"], "held") for one in (saved, now)]
        lines += _compared(f'trainer "{name}" holds', *held)
    if saved["devices"] != now["devices"]:
        lines.append(f"{counted(saved['devices'], 'device')} in the checkpoint, {now['devices']} here")
    precision = saved.get("precision", "float32")  # a checkpoint of before there was another
    if precision != now["precision"]:
        lines.append(f"precision {precision} in the checkpoint, {now['precision']} here")
    return lines


def _compared(what: str, saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    only = [name for name in saved if name not in now]
    new = [name for name in now if name not in saved]
    lines = [
        f'{what} "{name}": {saved[name]} in the checkpoint, {now[name]} here'
        for name in saved
        if name in now and saved[name] != now[name]
    ]
    lines += [f'{what} "{n}": {saved[n]} in the checkpoint, not here{suggest(n, new)}' for n in only]
    lines += [f'{what} "{n}": {now[n]} here, not in the checkpoint{suggest(n, only)}' for n in new]
    return lines[:SHOWN] + ([f"{what} …: {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])


def _spec_rows(spec: TaskSpec) -> list[list[str]]:
    """Return stage, kind, name and text of everything that a spec declares."""
    rows = [["train", *row] for row in summary_rows(spec)]
    if spec.evaluate is not None:
        rows += [["evaluate", *row] for row in summary_rows(spec.evaluate)]
    return rows


def _spec_texts(saved: Sequence[Any]) -> dict[str, str]:
    """Return the texts of a saved spec by stage, kind and name."""
    rows = _rows_of_table(saved) if all(isinstance(line, str) for line in saved) else saved
    return {
        f"{'evaluate ' if stage == 'evaluate' else ''}{what} {name}": text for stage, what, name, text in rows
    }


def _rows_of_table(lines: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of a spec that was saved as a printed table, as old checkpoints have it."""
    stage, columns = "train", None
    for line in lines:
        if line == EVALUATING:
            stage, columns = "evaluate", None
        elif line.startswith("----"):
            columns = [match.start() for match in re.finditer("-+", line)]
        elif columns and line:
            yield stage, line[: columns[1]].strip(), line[columns[1] : columns[2]].strip(), line[columns[2] :]


def _form(parameter: Any) -> dict[str, Any]:
    shape, dtype = parameter.shape, parameter.dtype
    if shape is None:  # a SymbolBlock's parameter does not know its own
        shape = () if parameter._data is None else parameter._data[0].shape
    kind = np.dtype(dtype)
    return {"shape": list(shape), "dtype": kind.names[0] if kind.names else kind.name}  # bfloat16 has a field


def _forms(found: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> dict[str, str]:
    texts = {}
    for name, form in found.items():
        shape = form["shape"]
        there = known[name]["shape"] if known and name in known else shape
        if len(there) == len(shape):
            shape = [b if a in (0, -1) else a for a, b in zip(shape, there)]
        texts[name] = f"({', '.join(map(str, shape))}) {form['dtype']}"
    return texts


def _kind(trainer: Mapping[str, Any]) -> str:
    schedule = f" with {trainer['schedule']}" if trainer["schedule"] else ""
    return f"{trainer['optimizer']}{schedule}"


def _schedule(scheduler: Any) -> str | None:
    if isinstance(scheduler, ScaledSchedule):  # which comes and goes while a run lasts
        scheduler = scheduler.scheduler
    return None if scheduler is None else type(scheduler).__name__
