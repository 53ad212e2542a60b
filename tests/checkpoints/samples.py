"""Checkpoints of a few bytes, and functions that fail while they are written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, Callable

from multifit.checkpoints import newest_checkpoint, write_checkpoint

NAME = "epoch-0001-step-00000010"


def filled(content: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "net.params").write_text(content)
        (folder / "trainers").mkdir()
        (folder / "trainers" / "adam.npz").write_text(content * 2)

    return fill


def written(parent: Path, content: str = "a", name: str = NAME, **facts: Any) -> Path:
    return write_checkpoint(parent, name, filled(content), facts)


def usable(parent: Path) -> str:
    """Return the content of the newest intact checkpoint; there must be one."""
    path, _ = newest_checkpoint(parent)
    assert path is not None
    return (path / "net.params").read_text()


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise error

    return function


class Ending:
    """Calls a function; at its n-th call, before or after it, something else happens."""

    def __init__(self, function: Callable[..., Any], n: int, after: bool, end: Callable[[], Any]) -> None:
        self.function, self.left, self.after, self.end = function, n, after, end

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            self.end()
        result = self.function(*args, **options)
        if self.left == 0:
            self.end()
        return result


fail, interrupt = raising(OSError(errno.ENOSPC, "No space left on device")), raising(KeyboardInterrupt())
