"""Note on exceptions of the user's net, loss, metric or function where they were raised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..spec.checks import describe
from ..spec.checks.values import channels_hint
from ..utils.errors import note_call

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
    arguments, message, hint = list(arguments), str(error), ""
    if _DTYPES_DIFFER.search(message):
        hint = _CAST
    elif "channels" in message:
        hint = channels_hint(arguments)
    note_call(error, describe.call(where, arguments) + hint)
