"""LogFile."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from multifit.handlers import LoggingHandler, MetricHandler
from multifit.handlers.log_file import LogFile

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "multifit")


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def test_it_has_all_messages_with_time_stamps(
    run: Any, clock: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs" / "x" / "log.txt"
    with LogFile(path).around_fit(run):
        run.fit(LoggingHandler(clock=clock), MetricHandler(), epochs=2)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4 and messages[-1].startswith("trained 2 epochs")
    assert all(re.match(STAMP + "INFO    ", line) for line in lines(path))
    assert [re.sub(STAMP + "INFO    ", "", line) for line in lines(path)] == messages


def test_it_has_the_figures_that_do_not_fit_the_terminal(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run.train = lambda state: {f"train_class {i}": 0.5 for i in range(20)}
    with LogFile(tmp_path / "log.txt").around_fit(run):
        run.fit(LoggingHandler(), MetricHandler())
    assert "train_class 19    0.5000" in lines(tmp_path / "log.txt")[1]
    assert "class 19" not in caplog.records[1].getMessage()


def test_nothing_is_written_before_and_after_the_fit(run: Any, tmp_path: Path) -> None:
    path, handlers = tmp_path / "log.txt", list(run.logger.handlers)
    run.logger.info("before")
    with LogFile(path).around_fit(run):
        run.logger.warning("Größe: %d", 5)
    run.logger.info("after")
    assert [line[24:] for line in lines(path)] == ["WARNING Größe: 5"]
    assert run.logger.handlers == handlers


def test_a_second_fit_appends_to_the_file(run: Any, tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "log.txt"))
    for fit in range(2):
        with log.around_fit(run):
            run.logger.info("fit %d", fit)
    assert [line[-5:] for line in lines(tmp_path / "log.txt")] == ["fit 0", "fit 1"]


def test_it_is_closed_when_the_fit_fails(run: Any, tmp_path: Path) -> None:
    handlers = list(run.logger.handlers)
    with pytest.raises(KeyboardInterrupt), LogFile(tmp_path / "log.txt").around_fit(run):
        raise KeyboardInterrupt
    assert run.logger.handlers == handlers


def test_a_file_that_cannot_be_opened_is_one_warning(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "log.txt"
    with LogFile(path).around_fit(run):
        run.fit(LoggingHandler())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"cannot write the log to {path}: ")
    assert warnings[0].endswith("; training continues without it")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_warning(
    run: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = list(run.logger.handlers)
    with LogFile("/dev/full").around_fit(run):
        run.fit(LoggingHandler(), MetricHandler(), epochs=3)
        assert run.logger.handlers == handlers
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "cannot write the log to /dev/full: No space left on device; training continues without it"
    ]
    assert len(caplog.records) == 6 and capsys.readouterr().err == ""


def test_an_invalid_message_does_not_close_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent:  # a logger that only the file hears, for pytest's own handler raises
        logger = logging.Logger("silent")

    with LogFile(tmp_path / "log.txt").around_fit(Silent()):  # type: ignore[arg-type]
        Silent.logger.info("%d figures", "several")
        Silent.logger.info("on")
    assert "Logging error" in capsys.readouterr().err
    assert [line[-2:] for line in lines(tmp_path / "log.txt")] == ["on"]
