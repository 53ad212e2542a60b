"""LoggingHandler, ProgressBar (with the real tqdm on a text stream), LogFile, and which figures they show."""

import io
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tqdm.auto import tqdm

from multifit.handlers import LogFile, LoggingHandler, MetricHandler, ProgressBar  # isort: skip
from multifit.handlers import StoppingHandler, ValidationHandler, printing  # isort: skip
from multifit.handlers.printing import key_figures
from multifit.spec import LossSpec, MetricSpec, TaskSpec

from .conftest import At, spec_of_two_tasks

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level("INFO", "multifit")
    return lambda: caplog.messages


def test_a_line_per_epoch(run: Any, clock: Any, lines: Any) -> None:
    run.max_epoch = 10
    validation, stopping = ValidationHandler("data", epoch_period=2), StoppingHandler(max_batch=6)
    run.fit(LoggingHandler(clock=clock), MetricHandler(), validation, stopping, epochs=10)
    assert lines() == [
        "training for 10 epochs: lr 0.0010",
        "epoch  1/10      3.00 s         8 samples/s  train_loss 0.3333  lr 0.0010",
        "epoch  2/10      5.00 s         8 samples/s  "  # two seconds were the validation's
        "train_loss 0.1667  val_loss 0.3333  lr 0.0010",
        "trained 2 epochs, 48 samples, in 8.00 s; stopped: 6 batches",
    ]
    assert run.read == [("train", 3), ("train", 6)]  # by MetricHandler: logging reads nothing


def figures_of_tasks(state: Any) -> dict[str, float]:
    return {f"train_{name}": 0.5 for name in ("loss", "digit", "size", "size.far", "accuracy")}


@pytest.mark.parametrize(
    ("figures", "logged", "drawn"),
    [
        (None, "train_loss 0.5000  train_accuracy 0.5000  train_size 0.5000  lr 0.0010",
         "loss 0.5000  accuracy 0.5000  size 0.5000]"),
        (["train_size.*", "lr"], "train_size 0.5000  train_size.far 0.5000  lr 0.0010", "size.far"),
        ((), "", ""),
    ],
)  # fmt: skip
def test_figures_can_be_chosen(run, clock, lines, monkeypatch, figures, logged, drawn) -> None:
    """Of a line in the log, and of a bar for training; another one is that of the validation."""
    monkeypatch.setenv("COLUMNS", "130")
    run.train, run.max_epoch, stream = figures_of_tasks, 2, Terminal()
    bar = ProgressBar(stream, refresh=0, clock=clock, figures=figures)
    logging_handler = LoggingHandler(clock=clock, figures=figures)
    run.fit(bar, logging_handler, MetricHandler(), ValidationHandler("data", epoch_period=2), epochs=2)
    assert lines()[1] == f"epoch 1/2      3.00 s         8 samples/s  {logged}".rstrip()
    text = stream.getvalue()
    for part in ("epoch 1/2:   0%", "epoch 2/2: 100%", "3/3", "evaluate: 100%", "2/2", drawn):
        assert part in text
    assert text.split("\r")[-2].strip() == ""  # bars disappear when they are done
    assert not tqdm._instances


def test_a_pattern_without_a_figure_is_a_warning(run, clock, caplog) -> None:
    run.fit(LoggingHandler(clock=clock, figures=["train_lss", ".*_loss"]), MetricHandler())
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for fact in ('no figure "train_lss"', 'did you mean "train_loss"?', '"train_loss", "lr"'):
        assert fact in warning


def test_a_second_fit_continues_counting_epochs(run: Any, clock: Any, lines: Any) -> None:
    run.max_epoch, handler = 2, LoggingHandler(clock=clock)
    for _ in range(2):
        run.fit(handler, epochs=2)
    counts = [line.split("  ")[0] for line in lines() if line.startswith("epoch")]
    assert counts == ["epoch 1/2", "epoch 2/2", "epoch 3/4", "epoch 4/4"]
    assert lines()[-1] == "trained 2 epochs, 48 samples, in 6.00 s; stopped: the data is exhausted"


def test_a_fit_that_fails_tells_what_it_did_and_the_next_one_closes_its_bars(run, clock, lines) -> None:
    def refuse(estimator: Any) -> None:
        raise KeyboardInterrupt

    log, bar = LoggingHandler(clock=clock), ProgressBar(Terminal(), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        run.fit(log, bar, At("batch_end", refuse, 4), epochs=2)
    assert len(tqdm._instances) == 1
    log.train_end(run)
    assert lines()[-1] == "trained 1 epoch, 32 samples, in 4.00 s; stopped: the data is exhausted"
    run.fit(log, bar, epochs=0)
    assert lines()[-1] == "trained 0 epochs, 0 samples, in 0.00 s; stopped: the data is exhausted"
    assert not tqdm._instances


def test_messages_within_an_epoch(run: Any, clock: Any, lines: Any) -> None:
    run.max_batch = 20
    validation = ValidationHandler("data", epoch_period=None, batch_period=3)
    run.fit(LoggingHandler(2, clock=clock), validation, batches=10)
    assert lines()[:3] == [
        "training for 20 batches: lr 0.0010",
        "epoch 1  batch  2/10         8 samples/s  train_loss 0.5000",
        "epoch 1  batch  4/10         8 samples/s  train_loss 0.2500",
    ]
    assert len(lines()) == 1 + 5 + 2
    assert run.read == [("train", step) for step in (2, 4, 6, 8, 10)]


@pytest.mark.parametrize(
    ("limits", "goal"), [((None, None), "without a limit"), ((3, 7), "for 3 epochs or 7 batches")]
)
def test_all_limits_are_named_and_batches_of_an_unknown_number_counted(run, clock, lines, limits, goal):
    (run.max_epoch, run.max_batch), stream = limits, Terminal()
    run.fit(LoggingHandler(3, clock=clock), ProgressBar(stream, refresh=0, clock=clock), known=False)
    assert lines()[0] == f"training {goal}: lr 0.0010"
    assert lines()[1].startswith("epoch 1") and "batch 3         8 samples/s  train_loss 0.3333" in lines()[1]
    assert "3 batches" in stream.getvalue() and "\n" not in stream.getvalue()


def test_an_evaluation_outside_a_fit_is_logged(run: Any, clock: Any, lines: Any) -> None:
    run.validation = lambda state: {"loss": 0.5, "size": 0.25, "size.far": 0.125}
    for figures, shown in ((None, "loss 0.5000  size 0.2500"), (r"val_size\..*", "size.far 0.1250")):
        run.evaluate("data", event_handlers=LoggingHandler(clock=clock, figures=figures))
        assert lines()[-1] == f"evaluated in 2.00 s: {shown}"
    run.evaluate("data", event_handlers=LoggingHandler(clock=lambda: 0.0))  # it does not advance


# With a refresh of 3 s, seconds 3 | 4 5 | 8 | 10 | 13 | 15: an evaluation takes two seconds, and has a bar
@pytest.mark.parametrize(
    ("refresh", "handlers", "read"),
    [
        (0, [], [("train", step) for step in (1, 2, 3, 4, 5, 6, 7, 8, 9)]),
        (2, [], [("train", step) for step in (2, 4, 6, 8)]),
        (100, [], []),
        (3, [ValidationHandler("data")],
         [("train", 3), ("train", 4), ("evaluate", 6), ("train", 8), ("evaluate", 9)]),
    ],
)  # fmt: skip
def test_all_bars_share_the_refresh(run: Any, clock: Any, refresh: float, handlers: Any, read: Any) -> None:
    stream = Terminal()
    run.fit(ProgressBar(stream, refresh=refresh, clock=clock), *handlers, epochs=3)
    assert run.read == read
    assert stream.getvalue().count("loss") >= len(read)


def test_a_slow_reading_is_not_followed_by_another(run: Any, clock: Any) -> None:
    def slow(state: Any) -> dict[str, float]:
        clock.now += 10.0
        return {"train_loss": 0.0}

    run.train = slow
    run.fit(ProgressBar(Terminal(), refresh=2, clock=clock), batches=5)
    assert run.read == [("train", 2), ("train", 4)]


@pytest.mark.parametrize(
    ("kind", "enabled", "notebook", "drawn"),
    [
        (Terminal, None, False, True),
        (io.StringIO, None, False, False),
        (io.StringIO, None, True, True),  # with ipywidgets
        (io.StringIO, True, False, True),
        (Terminal, False, False, False),
        (lambda: None, True, False, False),  # stderr is closed
    ],
    ids=["terminal", "file", "notebook", "enabled", "disabled", "closed"],
)
def test_where_bars_are_drawn(run, monkeypatch, kind, enabled, notebook, drawn) -> None:
    """Stderr is looked up when a bar is opened; figures that nobody sees are not read."""
    if notebook:
        monkeypatch.setattr(printing, "tqdm_notebook", tqdm)
    bar, stream = ProgressBar(refresh=0, enabled=enabled), kind()
    monkeypatch.setattr(sys, "stderr", stream)
    run.fit(bar, ValidationHandler("data"))
    assert run.state.step == 3
    if stream is not None:
        assert ("epoch 1" in stream.getvalue()) is bool(run.read) is drawn


def test_it_has_all_messages_of_the_fit_with_time_stamps(run, clock, tmp_path, lines) -> None:
    path, handlers = tmp_path / "runs" / "x" / "log.txt", list(run.logger.handlers)
    run.logger.info("before")
    with LogFile(path).around_fit(run):
        run.fit(LoggingHandler(clock=clock), MetricHandler(), epochs=2)
        run.logger.info("Größe: %d", 5)
    run.logger.info("after")
    assert len(lines()) == 7 and lines()[-2] == "Größe: 5"
    written = path.read_text("utf-8").splitlines()
    assert all(re.match(STAMP + "INFO    ", line) for line in written)
    assert [re.sub(STAMP + "INFO    ", "", line) for line in written] == lines()[1:-1]
    assert run.logger.handlers == handlers


def test_a_second_fit_appends_to_the_file_which_an_error_closes(run: Any, tmp_path: Path) -> None:
    log, handlers = LogFile(str(tmp_path / "log.txt")), list(run.logger.handlers)
    for fit in range(2):
        with pytest.raises(KeyboardInterrupt), log.around_fit(run):
            run.logger.info("fit %d", fit)
            raise KeyboardInterrupt
    assert [line[-5:] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["fit 0", "fit 1"]
    assert run.logger.handlers == handlers


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_end_the_fit(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with LogFile("/dev/full").around_fit(run):
        run.fit(LoggingHandler(), MetricHandler())
    assert run.state.step == 3 and "No space left on device" in capsys.readouterr().err


def detection() -> TaskSpec:
    """Declare a net that has other outputs when evaluating, and a metric with a figure per class."""
    box = LossSpec(max, outputs=["classes", "boxes"], labels="target", returns=("sum", "class"))
    voc = {"VOC": MetricSpec(max, outputs="boxes", labels="truth")}
    evaluate = TaskSpec(outputs="boxes", labels=["truth"], metrics=voc)
    return TaskSpec(outputs=("classes", "boxes"), labels=["target"], losses={"box": box}, evaluate=evaluate)


def of_losses() -> TaskSpec:
    """Declare a metric that reads a loss."""
    losses = {"a": LossSpec(max, returns=("sum", "part"), minimize="sum"), "b": LossSpec(max)}
    metrics = {"perplexity": MetricSpec(max, losses="a.part")}
    return TaskSpec(outputs=("a", "b"), labels=["a", "b"], losses=losses, metrics=metrics)


CASES: dict[str, tuple[TaskSpec, list[str], list[str]]] = {
    "a metric stands for its task, a loss for the other": (
        spec_of_two_tasks(),
        ["train_loss", "train_digit", "train_size", "train_accuracy", "lr", "val_accuracy", "val_digit"],
        ["train_loss", "train_accuracy", "train_size", "val_accuracy", "lr"],
    ),
    "a single loss is the objective, and the last of a metric's figures stands for all": (
        detection(),
        ["train_loss", "train_box", "train_box.class", "val_VOC.cat", "val_VOC.dog", "val_VOC.mAP"],
        ["train_loss", "val_VOC.mAP"],
    ),
    "tasks of a combined spec": (
        TaskSpec.combine(detection=detection(), two=spec_of_two_tasks()),
        ["train_loss", "train_detection/box", "train_two/digit", "train_two/size", "train_two/accuracy"],
        ["train_loss", "train_two/accuracy", "train_detection/box", "train_two/size"],
    ),
    "a metric of a loss stands for its task": (
        of_losses(),
        ["train_loss", "train_a", "train_a.part", "train_b", "train_perplexity"],
        ["train_loss", "train_perplexity", "train_b"],
    ),
    "figures that handlers record": (
        spec_of_two_tasks(),
        ["train_loss", "val_mine", "val_mine.part", "lr_body", "lr_heads"],
        ["train_loss", "val_mine", "lr_body", "lr_heads"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_key_figures(case: str) -> None:
    spec, names, expected = CASES[case]
    assert key_figures(names, spec) == expected
