"""The loaders that a task file's ``data`` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checks import one_shot
from ..errors import DataError
from ..taskfile import UsageError


def loaders(data: Any, path: Path) -> tuple[Any, Any]:
    """Return the training data, and the validation data or None, of what ``data`` of a file returned.

    Raises UsageError for a tuple that is not a pair, and for a loader that can be read only once, as the
    check reads from it before the training does.
    """
    pair = data if isinstance(data, tuple) else (data, None)
    if len(pair) != 2:
        raise UsageError(
            f"data() of {path} must return (train_data, val_data) or train_data, not a tuple of {len(pair)}"
        )
    for name, each in zip(("train_data", "val_data"), pair):
        for loader in each.values() if isinstance(each, Mapping) else [each]:
            if one_shot(loader):
                raise UsageError(
                    f"data() of {path} must return loaders that can be read again, such as a DataLoader or a "
                    f"list; {name} is a {type(loader).__name__}"
                )
    return pair[0], pair[1]


@contextmanager
def explained(data: Any, path: Path) -> Iterator[None]:
    """Add to a DataError, if `data` is a list of two, that it was read as two batches and not as a pair."""
    try:
        yield
    except DataError as error:
        if isinstance(data, list) and len(data) == 2:
            error.at(
                f"data() of {path} returned a list, which is taken for train_data of two batches; "
                "(train_data, val_data) is a tuple"
            )
        raise
