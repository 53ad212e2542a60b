"""What signals to all processes of a run, as of a terminal that is closed, do to a loader's workers.

A fit that is interrupted finishes its batch, and needs its workers for that.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import parent_process
from types import FrameType

LOOK = 0.2  # seconds between two looks at the parent
_SIGNALS = [signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__]


def outlive_signals() -> None:
    """Let this worker ignore SIGTERM and SIGHUP as long as its parent lives; in no worker, do nothing."""
    if parent_process() is not None:
        for number in _SIGNALS:
            signal.signal(number, _end_with_parent)


def _end_with_parent(number: int, frame: FrameType | None) -> None:
    if (parent := parent_process()) is not None:
        threading.Thread(target=_watch, args=(parent.pid,), daemon=True).start()


def _watch(parent: int | None) -> None:
    """End this process when it has lost its parent: nobody else would."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)
