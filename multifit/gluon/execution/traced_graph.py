"""A graph that another engine runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

# The names of inputs that are not slots; slots cannot have these names.
SAMPLES, WEIGHTS = "#samples", "#weights"
OUTPUT = "#output."  # before the name of an output of the net, if the net is not part of the graph


@dataclass(frozen=True)
class TracedGraph:
    """A graph that MXNet traced.

    Parameters
    ----------
    symbol : str
        The graph, as MXNet writes it in JSON.
    inputs : dict of str to str
        The variables that get a value with each call, and the name of what each stands for.
    outputs : tuple of str
        The names of what the graph returns, in order.
    constants : mapping of str to numpy.ndarray
        The values of variables that are constants. All others are parameters.
    """

    symbol: str
    inputs: dict[str, str]
    outputs: tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)


def as_json(symbol: Any) -> str:
    """Return a symbol in JSON with its casts to a lower precision, which MXNet leaves out by default."""
    return str(symbol.tojson(remove_amp_cast=False))
