"""``settings.json``: what a run was trained with. With the parameters, it is all that prediction needs."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional, Union, get_type_hints

from ..arguments import checked_value, one_of
from ..engines import AUTO, CUDA_GRAPHS, ENGINES
from ..files import atomic_write, read_json
from ..gluon.installed import installed_versions
from ..recorded_settings import recorded
from ..taskfile import UsageError
from ..triggers import Every

RECORD = "settings.json"


@dataclass(frozen=True)
class RunRecord:
    """What a run was trained with; the records of older versions lack some of the fields."""

    file: str  # the task file; empty if unknown
    settings: dict[str, Any]
    seed: int
    epochs: Optional[int] = None  # how long the run is to be trained
    devices: list[str] = field(default_factory=list)  # such as ["cpu(0)"]
    engine: Annotated[str, one_of(*ENGINES)] = AUTO  # as the command line said it
    compile: Union[bool, Annotated[str, one_of(AUTO, CUDA_GRAPHS)]] = AUTO
    deterministic: bool = False
    precision: str = "float32"
    checkpoint_every: Optional[list[Any]] = None  # the schedule of checkpoints, such as [500, "batch"]
    file_seed: Optional[int] = None  # the seed under which the file was executed; None if older
    pictures: list[str] = field(default_factory=list)  # the files that were drawn at the end
    command: str = ""  # that began the run
    started: str = ""  # when, with the time zone
    seconds: Optional[float] = None  # how long it was trained; None if it runs, or was killed
    directions: dict[str, str] = field(default_factory=dict)  # "min" or "max" by figure, where known

    @property
    def schedule(self) -> Every | None:
        """The schedule of checkpoints."""
        return None if self.checkpoint_every is None else Every(*self.checkpoint_every)

    @property
    def devices_option(self) -> str | None:
        """The devices as ``--devices`` takes them, such as "cpu:2" for two CPUs; None if unknown."""
        kinds = {device.partition("(")[0] for device in self.devices}
        if self.devices == ["cpu"]:  # torch's name
            return "cpu"
        if kinds == {"cpu"}:
            return f"cpu:{len(self.devices)}"
        if kinds == {"gpu"}:
            return f"gpu:{','.join(device[len('gpu(') : -1] for device in self.devices)}"
        return self.devices[0] if len(self.devices) == 1 else None  # one by torch's name, such as cuda:0


def write_record(folder: Path, record: RunRecord) -> str:
    """Write the record, with the installed versions, and return the name of the file.

    A setting that is neither JSON nor a literal of Python is left out: no command line can change it either.
    """
    settings = {name: recorded(value) for name, value in record.settings.items()}
    settings = {name: value for name, value in settings.items() if _is_json(value)}
    torch = sys.modules.get("torch")  # the engine on PyTorch has imported it
    versions = {**installed_versions(), **({} if torch is None else {"torch": torch.__version__})}
    content = {**asdict(record), "settings": settings, "versions": versions}
    atomic_write(folder / RECORD, json.dumps(content, indent=2) + "\n")
    return RECORD


def read_record(folder: Path, file: Path) -> RunRecord:
    """Return the record of a run of `file`; the file's name is compared, its folder is not.

    Raises UsageError if the folder is not a run's, its ``settings.json`` cannot be read, or it is a run of
    another file.
    """
    path = folder / RECORD
    try:
        record = _checked_record(path)
    except OSError as error:
        raise UsageError(f"{folder} is not the folder of a run: {RECORD}: {error.strerror}") from None
    except (TypeError, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise UsageError(
            f"cannot read {path}: {reason}; remove it, and {resume_command(file, folder)} with the run's "
            "--seed and settings (--set NAME=VALUE) writes it anew"
        ) from None
    if record.file and record.file.replace("\\", "/").rpartition("/")[2] != file.name:
        raise UsageError(f"{folder} is a run of {record.file}, not of {file}")
    return record


def resume_command(file: Path, folder: Path) -> str:
    """Return the command line that continues a run."""
    return shlex.join(["multifit", "train", str(file), "--output", str(folder), "--resume"])


def recorded_pictures(folder: Path) -> list[str] | None:
    """Return the pictures of the folder's last run that are still there; None if no run has been there."""
    try:
        content = read_json(folder / RECORD, finite=False)
        if not {"file", "seed", "versions"} <= content.keys():
            return None
        names = [str(name) for name in content.get("pictures", [])]
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    pictures = [name for name in names if name.endswith(".png") and Path(name).name == name]
    return [name for name in pictures if (folder / name).is_file()]


def _checked_record(path: Path) -> RunRecord:
    """Read a record; raises ValueError or TypeError, in part with the path, if it is not one."""
    content = read_json(path, finite=False)
    if not (isinstance(content, dict) and isinstance(content.get("settings"), dict) and "seed" in content):
        raise ValueError("it must have settings and a seed")
    known = {name: content[name] for name in RunRecord.__dataclass_fields__ if name in content}
    record = RunRecord(**{"file": "", **known})
    for name, hint in get_type_hints(RunRecord, include_extras=True).items():
        checked_value(f'"{name}"', getattr(record, name), hint)
    record.schedule  # noqa: B018
    return record


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
