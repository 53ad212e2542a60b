"""Note on exceptions of the user's net, loss, metric or function where they were raised."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..spec.checks import describe
from ..spec.checks.values import channels_hint
from ..utils.errors import note_call
from ..utils.text import last_line
from .compat import mx

# MXNet's messages about arrays whose dtypes differ; about shapes, it says "expected [8,3], got [8,2]"
_DTYPES_DIFFER = re.compile(r"expected [a-z]+\d*, got [a-z]|requires uniform type")
_CHANNELS_DIFFER = re.compile(r"conv|Shape inconsistent")
_ONE_AXIS_LESS = re.compile(r"\((2 vs\. 3|3 vs\. 4|4 vs\. 5)\)")
_CAST = (
    '; the dtypes differ: cast an array with astype("float32") where it is computed, or a label with '
    'LabelSpec(name, dtype="float32")'
)


def wait_for_operators() -> None:
    """Wait until no operator uses parameters: a weight that is read meanwhile may be transposed.

    With oneDNN, MXNet changes the memory layout of a Conv2DTranspose's weight while it uses it, and then
    changes it back.
    """
    with suppress(mx.MXNetError):  # an operator's error is raised again when its result is read
        mx.nd.waitall()


def wait_for(values: Iterable[Any], where: Callable[[], str], *arguments: tuple[str, Any]) -> None:
    """Wait for those values that are arrays, to raise errors of operators as :func:`user_code` does."""
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
        note_call(error, describe.call(where(), arguments) + _hint(last_line(error), arguments))
        raise


def _hint(message: str, arguments: tuple[tuple[str, Any], ...]) -> str:
    if _DTYPES_DIFFER.search(message):
        return _CAST
    one_axis = any(len(getattr(value, "shape", "  ")) == 1 for _, value in arguments)
    if _ONE_AXIS_LESS.search(message) or ("Shape inconsistent" in message and one_axis):
        return (
            "; an input lacks an axis: that of the batch (give one sample x as x[None]), or of the channels"
        )
    return channels_hint(arguments) if _CHANNELS_DIFFER.search(message) else ""
