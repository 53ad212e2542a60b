"""multifit.utils.output: what cannot be printed is lost, and nothing else."""

import errno
import io
import logging
import sys
from typing import Any

import pytest

from multifit.distributed.log_once import get_logger
from multifit.utils.output import Output


class Broken(io.StringIO):
    """A stream whose every write fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.refused, self.error = list[str](), error

    def write(self, text: str) -> int:
        self.refused.append(text)
        raise self.error


def test_what_cannot_be_encoded_is_replaced() -> None:
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="ascii"))
    print("4 × loss…", file=output, flush=True)
    assert raw.getvalue() == b"4 ? loss?\n" and output.error is None and output.encoding == "ascii"


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "gone"), OSError(errno.EIO, "gone")])
def test_a_stream_that_breaks_is_silent_from_then_on(error: Exception) -> None:
    stream = Broken(error)
    output = Output(stream)
    assert output.write("one") == 3 and output.error is error
    print("two", file=output, flush=True)
    assert stream.refused == ["one"]


def test_a_closed_stream_and_none_are_silent() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        output = Output(stream)
        print("text", file=output, flush=True)
    with pytest.raises(AttributeError):
        Output(None).fileno()


def test_the_log_of_a_program_whose_output_breaks_goes_on(monkeypatch: Any, capfd: Any) -> None:
    logger, stream = logging.getLogger("multifit"), Broken(BrokenPipeError())
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(sys, "stdout", stream)
    for _ in range(2):
        get_logger().info("epoch")
    assert len(stream.refused) == 1 and capfd.readouterr().err == ""
