"""Operators and their times, from MXNet's own profiler."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Callable

from ...errors import last_line
from ...profile import Operator
from ..compat import mx

__all__ = ["operators"]

OFF = {
    "profile_all": False,
    "profile_symbolic": False,
    "profile_imperative": False,
    "profile_api": False,
    "profile_memory": False,
    "aggregate_stats": False,
    "continuous_dump": False,
}
# With statistics MXNet runs every operator by itself, also those within graphs, whichever way they allocate.
ON = {**OFF, "profile_symbolic": True, "profile_imperative": True, "aggregate_stats": True}


def operators(run: Callable[[], Any], steps: int) -> tuple[list[Operator], str]:
    """Return which operators run, the longest first, and why there are none.

    No file is left behind. A profile of the user's own is ended by it; its next one needs a ``set_config``
    of its own.

    Parameters
    ----------
    run : callable
        Makes the steps.
    steps : int
        How many it makes.
    """
    # MXNet deletes whatever stands under the name of its trace, and writes a trace there when the process
    # ends: so it is a name in a folder that is ours alone, and gone by then. Never os.devnull: where root
    # runs this, the machine has no /dev/null any more.
    with tempfile.TemporaryDirectory(prefix="multifit-") as folder:
        return _profiled(run, steps, os.path.join(folder, "trace.json"))


def _profiled(run: Callable[[], Any], steps: int, trace: str) -> tuple[list[Operator], str]:
    try:
        mx.nd.waitall()
        mx.profiler.set_config(**ON, filename=trace)
    except mx.MXNetError as error:  # after mx.profiler.dump() nobody can set it up again
        why = f"MXNet's profiler cannot be used in this process ({last_line(error)})"
        return [], f"no operators are shown: {why}"
    try:
        mx.profiler.set_state("run")
        run()
        mx.nd.waitall()
    finally:
        mx.profiler.set_state("stop")
        found = json.loads(mx.profiler.dumps(reset=True, format="json"))
        mx.profiler.set_config(**OFF, filename=trace)
    return _ordered(found["Time"].get("operator", {}), steps), ""


def _ordered(found: dict[str, dict[str, float]], steps: int) -> list[Operator]:
    # what somebody waits for is no work of the engine's
    found = {name: figures for name, figures in found.items() if name != "WaitForVar"}
    each = [
        Operator(_short(name), figures["Count"] / steps, figures["Total"] / steps)
        for name, figures in found.items()
    ]
    return sorted(each, key=lambda operator: -operator.ms)


def _short(name: str) -> str:
    """Return a name that fits a table: operators that a graph runs in a row have all their names."""
    names = name.split(",")
    if len(names) == 1:
        return name
    shown = next((each for each in names if each.startswith("_backward")), names[0])
    return f"{shown} and {len(names) - 1} more in a row"
