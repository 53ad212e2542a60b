"""Note on exceptions of the user's net, loss, metric or function where they were raised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..checks import CHANNELS_FIRST, describe, has_channels_last
from ..errors import note_call

# PyTorch's messages about arguments whose dtypes differ
_DTYPES_DIFFER = re.compile(r"same dtype|scalar type \w+ but found|Found dtype \w+ but expected")
_CAST = (
    "; the dtypes differ: cast a tensor with float() where it is computed, or a label with "
    'LabelSpec(name, dtype="float32")'
)


@contextmanager
def user_code(where: Callable[[], str], *arguments: tuple[str, Any]) -> Iterator[None]:
    """Raise exceptions of the user's code as they are, with the place and the arguments as a note.

    `where` returns the name of what was called, such as "the net's forward pass (train)". To PyTorch's
    messages about dtypes and channels, the note adds what helps.
    """
    try:
        yield
    except Exception as error:
        note_arguments(error, where(), arguments)
        raise


def note_arguments(error: Exception, where: str, arguments: Iterable[tuple[str, Any]]) -> None:
    """Note on an exception what was called, with which arguments, and what may help; see `user_code`."""
    arguments = list(arguments)
    called = ", ".join(f"{name} {describe.structure(value)}" for name, value in arguments)
    note_call(error, where + f", called with {called}" * bool(called) + _hint(str(error), arguments))


def _hint(message: str, arguments: list[tuple[str, Any]]) -> str:
    if _DTYPES_DIFFER.search(message):
        return _CAST
    images = any(has_channels_last(tuple(getattr(value, "shape", ()))) for _, value in arguments)
    return f"; {CHANNELS_FIRST}" if images and "channels" in message else ""
