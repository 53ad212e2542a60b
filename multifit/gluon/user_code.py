"""Errors raised by the user's net, loss, metric or function, with the place where they were raised."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator

from ..checks import CHANNELS_FIRST, describe, has_channels_last
from ..errors import CLEAR, user_error
from .compat import mx
from .waiting import wait_for_operators

# MXNet's messages about arrays whose dtypes differ; about shapes, it says "expected [8,3], got [8,2]"
_DTYPES_DIFFER = re.compile(r"expected [a-z]+\d*, got [a-z]|requires uniform type")
_CHANNELS_DIFFER = re.compile(r"conv|Shape inconsistent")
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
    """Raise errors of the user's code as UserCodeError, with the place, and the arrays it was called with.

    `where` returns the name of what was called, such as "the net's forward pass (train)". Errors that
    multifit itself raises, because that code returned something wrong, are passed on.
    """
    try:
        yield
    except CLEAR:
        raise
    except Exception as error:
        wait_for_operators()  # otherwise, an error in the background would be raised again in the next fit
        shown = ", ".join(f"{name} {describe.structure(value)}" for name, value in arguments)
        called_with = f", called with {shown}" if shown else ""
        raised = user_error(where(), error, called_with)
        images = any(has_channels_last(getattr(value, "shape", ())) for _, value in arguments)
        if _DTYPES_DIFFER.search(str(raised)):
            raised.args = (f"{raised}{_CAST}",)
        elif images and _CHANNELS_DIFFER.search(str(raised)):
            raised.args = (f"{raised}; {CHANNELS_FIRST}",)
        raise raised from error
