"""An event file for TensorBoard."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

BINS = np.cumprod([1e-12, *[1.1] * 773])  # edges of TensorFlow's histograms above zero, up to 1e20


class EventFile:
    """Writes figures, histograms, pictures and texts to a new event file.

    Every method but `close` raises OSError if the disk refuses the data. tensorboardX makes the records. Its
    SummaryWriter is not used: it writes in a thread, and waits forever if a disk error has ended that thread.

    Parameters
    ----------
    folder : path
        The folder for the file; created if missing.
    done : int
        The number of steps that are done. TensorBoard discards later steps in earlier files of the folder.
    clock : callable
        Returns the time in seconds since 1970.

    Raises
    ------
    ImportError
        tensorboardX is not installed.
    """

    def __init__(self, folder: Path, done: int, clock: Callable[[], float] = time.time) -> None:
        from tensorboardX import summary, utils
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        nth = len(list(folder.glob("events.out.tfevents.*")))  # two files may begin in the same second
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{nth}"
        self._clock, self._event, self._summary, self._utils = clock, Event, summary, utils
        self._records = RecordWriter(str(folder / name))
        self._record(file_version="brain.Event:2")
        self._record(step=done + 1, session_log=SessionLog(status=SessionLog.START))

    def add_figure(self, tag: str, value: float, step: int) -> None:
        """Write a number."""
        self._record(step=step, summary=self._summary.scalar(tag, value))

    def add_histogram(self, tag: str, values: np.ndarray[Any, Any], step: int) -> None:
        """Write the histogram of finite values."""
        summary = self._summary.histogram(tag, values, [*-BINS[::-1], 0, *BINS])
        self._record(step=step, summary=summary)

    def add_picture(self, tag: str, figure: Any, step: int) -> None:
        """Write a matplotlib figure."""
        image = self._utils.figure_to_image(figure, close=False)
        self._record(step=step, summary=self._summary.image(tag, image))

    def add_text(self, tag: str, text: str, step: int) -> None:
        """Write a text in Markdown."""
        self._record(step=step, summary=self._summary.text(tag, text))

    def flush(self) -> None:
        """Write what is buffered to the disk."""
        self._records.flush()

    def close(self) -> None:
        """Close the file; an OSError is ignored, because earlier writes have raised it."""
        with suppress(OSError):
            self._records.close()

    def _record(self, **fields: Any) -> None:
        event = self._event(wall_time=self._clock(), **fields)
        self._records.write(event.SerializeToString())
