"""Note on exceptions of the user's net, loss, metric or function where they were raised."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..checks import CHANNELS_FIRST, describe, has_channels_last
from ..errors import last_line, note_call
from .compat import mx
from .waiting import wait_for_operators

# MXNet's messages about arrays whose dtypes differ; about shapes, it says "expected [8,3], got [8,2]"
_DTYPES_DIFFER = re.compile(r"expected [a-z]+\d*, got [a-z]|requires uniform type")
_CHANNELS_DIFFER = re.compile(r"conv|Shape inconsistent")
_ONE_AXIS_LESS = re.compile(r"\((2 vs\. 3|3 vs\. 4|4 vs\. 5)\)")
_CAST = (
    '; the dtypes differ: cast an array with astype("float32") where it is computed, or a label with '
    'LabelSpec(name, dtype="float32")'
)


def wait_for(values: Iterable[Any], where: Callable[[], str], *arguments: tuple[str, Any]) -> None:
    """Wait for those values that are arrays, to raise errors of the engine as :func:`user_code` does."""
    with user_code(where, *arguments):
        for value in values:
            if isinstance(value, mx.nd.NDArray):
                value.wait_to_read()


@contextmanager
def user_code(where: Callable[[], str], *arguments: tuple[str, Any]) -> Iterator[None]:
    """Raise exceptions of the user's code as they are, with the place and the arguments as a note.

    `where` returns the name of what was called, such as "the net's forward pass (train)". To MXNet's messages
    about dtypes and channels, the note adds what helps.
    """
    try:
        yield
    except Exception as error:
        wait_for_operators()  # otherwise, an error in the background would be raised again in the next fit
        note_call(error, where() + _called_with(arguments) + _hint(error, arguments))
        raise


def _called_with(arguments: tuple[tuple[str, Any], ...]) -> str:
    shown = ", ".join(f"{name} {describe.structure(value)}" for name, value in arguments)
    return f", called with {shown}" if shown else ""


def _hint(error: Exception, arguments: tuple[tuple[str, Any], ...]) -> str:
    message = last_line(error)
    if _DTYPES_DIFFER.search(message):
        return _CAST
    if _ONE_AXIS_LESS.search(message) or (
        "Shape inconsistent" in message
        and any(len(getattr(each, "shape", "  ")) == 1 for _, each in arguments)
    ):
        return (
            "; an input lacks an axis: that of the batch (give one sample x as x[None]), or of the channels"
        )
    images = any(has_channels_last(getattr(value, "shape", ())) for _, value in arguments)
    return f"; {CHANNELS_FIRST}" if images and _CHANNELS_DIFFER.search(message) else ""
