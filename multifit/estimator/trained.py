"""Find the parameters that a training has left, for use."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..checkpoints import best_checkpoint, checkpoint_paths, newest_checkpoint, read_info, verify
from ..engines.snapshot import Snapshot
from ..utils.files import read_json
from ..utils.text import quoted, suggest
from .run_folder import RECORD

LAST, BEST = "last", "best"


def find_trained(folder: Path, which: str, snapshot: Snapshot, warn: Callable[[str], object]) -> Path:
    """Return the file with the parameters of a run, of the best or a named checkpoint in its folder.

    `snapshot` is the engine's, which names that file. `warn` is called with a line for each damaged
    checkpoint that is passed over. Raises ValueError if there is none.
    """
    if not folder.is_dir():
        what = f"is a file: {snapshot.reader} reads one" if folder.exists() else "does not exist"
        near = suggest(folder.name, (each.name for each in folder.absolute().parent.glob("*")))
        raise ValueError(
            f"{folder} {what}{near}; load takes the folder of a run, of checkpoints or of one of them"
        )
    if which == LAST and _is_finished(folder, snapshot.final_file):
        return folder / snapshot.final_file
    if which not in (LAST, BEST):
        return _named(folder, which) / snapshot.net_file
    found, damaged = (newest_checkpoint if which == LAST else best_checkpoint)(folder)
    for line in damaged:
        warn(line)
    if found is None:
        lines = "".join(f"\n  {line}" for line in damaged)
        lacks = {
            LAST: f"neither {snapshot.final_file} of a finished run nor an intact checkpoint",
            BEST: "no intact checkpoint with a figure: CheckpointHandler(folder, monitor=…) saves some",
        }
        raise ValueError(f"{folder} holds {lacks[which]}{lines}")
    return found.path / snapshot.net_file


def _is_finished(folder: Path, final_file: str) -> bool:
    """Whether a run has written its parameters, and was not resumed since."""
    resumed = False
    with suppress(OSError, ValueError, TypeError, KeyError):  # without a record, or with a damaged one
        resumed = read_json(folder / RECORD, finite=False)["seconds"] is None
    return (folder / final_file).exists() and not resumed


def _named(folder: Path, name: str) -> Path:
    """Return the checkpoint with a name; raises ValueError if it is not there, or damaged."""
    paths = {path.name: path for path in checkpoint_paths(folder)}
    if name not in paths:
        valid = [LAST, BEST, *paths]
        raise ValueError(f'which is "{name}"{suggest(name, valid)}; valid for {folder} are {quoted(valid)}')
    problems = verify(read_info(paths[name]))
    if problems:
        raise ValueError(f"{paths[name]} is damaged: {'; '.join(problems)}")
    return paths[name]
