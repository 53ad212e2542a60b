"""Operators and their times, from MXNet's own profiler."""

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

from ..errors import last_line
from .compat import mx

KINDS = ("all", "symbolic", "imperative", "api", "memory")
OFF = {**{f"profile_{kind}": False for kind in KINDS}, "aggregate_stats": False, "continuous_dump": False}
# With statistics, MXNet runs every operator separately, even within graphs.
ON = {**OFF, "profile_symbolic": True, "profile_imperative": True, "aggregate_stats": True}


def operator_times(run: Callable[[], Any], steps: int) -> tuple[list[tuple[str, float, float]], str]:
    """Run steps under MXNet's profiler; no file is left behind.

    Returns each operator's name, calls per step and milliseconds per step, the slowest first; and the reason
    if there are none, else "". If the user is running a profile, it ends; the next one needs a new
    ``set_config``.
    """
    # MXNet deletes the file with the name of its trace, and writes a trace there when the process ends. So
    # the name is in a temporary folder, which is deleted by then. Never use os.devnull: with root's rights,
    # this would delete the machine's /dev/null.
    with tempfile.TemporaryDirectory(prefix="multifit-") as folder:
        return _profile(run, steps, os.path.join(folder, "trace.json"))


def _profile(run: Callable[[], Any], steps: int, trace: str) -> tuple[list[tuple[str, float, float]], str]:
    try:
        mx.nd.waitall()
        mx.profiler.set_config(**ON, filename=trace)
    except mx.MXNetError as error:  # after mx.profiler.dump() it cannot be set up again
        reason = f"MXNet's profiler cannot be used in this process ({last_line(error)})"
        return [], f"no operators are shown: {reason}"
    try:
        mx.profiler.set_state("run")
        run()
        mx.nd.waitall()
    finally:
        mx.profiler.set_state("stop")
        statistics = json.loads(mx.profiler.dumps(reset=True, format="json"))
        mx.profiler.set_config(**OFF, filename=trace)
    times = [
        (_short_name(name), values["Count"] / steps, values["Total"] / steps)
        for name, values in statistics["Time"].get("operator", {}).items()
        if name != "WaitForVar"  # waiting is not work of the engine
    ]
    return sorted(times, key=lambda row: -row[2]), ""


def _short_name(name: str) -> str:
    """Return a name that fits a table: operators that a graph runs in a row are named by all their names."""
    operators = name.strip("[]").split(",")  # the names are in brackets for some graphs
    if len(operators) == 1:
        return name
    shown = next((each for each in operators if each.startswith("_backward")), operators[0])
    return f"{shown} and {len(operators) - 1} more in a row"
