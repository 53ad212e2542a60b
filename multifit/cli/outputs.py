"""Where a command writes, and what it prints."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterable

from ..errors import reason
from ..output import write_error
from ..taskfile import UsageError

PREDICTIONS = "predictions"  # the folder of what predict draws or writes, beside the net


def make_folder(folder: Path) -> None:
    """Make the folder for results, before a training rather than after it; raise UsageError if that fails."""
    try:
        str(folder).encode("utf-8")  # as MXNet does
        if os.path.lexists(folder) and not folder.is_dir():
            what = (
                f"a link to {os.readlink(folder)}, and nothing is there" if folder.is_symlink() else "a file"
            )
            raise ValueError(f"it is {what}; give another --output")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ValueError("no permission")
    except UnicodeEncodeError:
        raise UsageError(f"cannot write the results to {str(folder)!r}: it is not valid UTF-8") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write the results to {folder}: {reason(error)}") from None


def print_result(text: str) -> None:
    """Print the result of a command; raise UsageError if that fails.

    What a command prints beside the files that it writes may get lost, but its result may not.
    """
    print(text, flush=True)
    lost = write_error(sys.stdout)
    if lost is not None:
        raise UsageError(f"cannot write the output: {lost}")


def print_results(lines: Iterable[str]) -> None:
    """Print results as they come; raise UsageError if that fails."""
    for line in lines:
        print_result(line)
