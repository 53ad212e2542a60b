"""Refuses to begin a run in a folder with results of which no record says that they are an earlier run's."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints import CHECKPOINTS, MANIFEST, checkpoints_folder
from ..taskfile import UsageError
from .record import RECORD, recorded_pictures
from .results import HISTORY, PARAMETERS


def refuse_unrecorded(folder: Path) -> None:
    """Raise UsageError if a new run would replace files that cannot be set aside as those of a run.

    Only a folder with a record is certain to be a run's, whose files may be moved. Somebody may have damaged
    the record, copied the results alone, or have a ``settings.json`` of another program.
    """
    if recorded_pictures(folder) is not None:
        return
    found = [name for name in (RECORD, PARAMETERS, HISTORY) if (folder / name).exists()]
    ways = ["give another --output", "move these files away"]
    if any(checkpoints_folder(folder).glob(f"*/{MANIFEST}")):
        found.append(CHECKPOINTS)
        ways.append(f"{f'remove {RECORD} and ' if RECORD in found else ''}continue the run with --resume")
    if found:
        record = f"{RECORD} is not the record of a run" if RECORD in found else f"no {RECORD}"
        raise UsageError(
            f"{folder} has {', '.join(found)}, but {record}: a new run would overwrite these files; "
            f"{', or '.join(ways)}"
        )
