"""LoggingHandler."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from multifit.handlers import LoggingHandler, MetricHandler, StoppingHandler, ValidationHandler

from .conftest import At


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level("INFO", "multifit")
    return lambda: [record.getMessage() for record in caplog.records]


def set_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", f"{columns}")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    set_terminal(monkeypatch, 110)


def test_a_line_per_epoch(run: Any, clock: Any, lines: Any) -> None:
    run.max_epoch = 10
    run.fit(
        LoggingHandler(clock=clock),
        MetricHandler(),
        ValidationHandler("data", epoch_period=2),
        StoppingHandler(max_batch=6),
        epochs=10,
    )
    assert lines() == [
        "training for 10 epochs: lr 0.0010",
        "epoch  1/10      3.00 s         8 samples/s  train_loss    0.3333  lr    0.0010",
        "epoch  2/10      5.00 s         8 samples/s  "  # two seconds were the validation's
        "train_loss    0.1667  val_loss    0.3333  lr    0.0010",
        "trained 2 epochs, 48 samples, in 8.00 s; stopped: 6 batches",
    ]
    assert run.read == [("train", 3), ("train", 6)]  # by MetricHandler: logging reads nothing


TRAIN_NAMES = ["loss", "digit", "size", "size.far", "size.near", "accuracy"]


def run_two_tasks(run: Any, *handlers: Any, epochs: int = 1) -> None:
    run.train = lambda state: {f"train_{name}": 0.5 for name in TRAIN_NAMES}
    run.validation = lambda state: dict.fromkeys(["loss", "digit", "size", "accuracy"], 0.25)
    run.fit(*handlers, MetricHandler(), ValidationHandler("data"), epochs=epochs)


def test_the_objective_and_a_key_figure_per_task_are_shown(run: Any, clock: Any, lines: Any) -> None:
    run_two_tasks(run, LoggingHandler(clock=clock))
    head, train, val = lines()[1].split("\n")
    assert head.endswith("samples/s  lr 0.0010")
    assert train == "  train  loss    0.5000  accuracy    0.5000  size    0.5000"
    assert val == "  val    loss    0.2500  accuracy    0.2500  size    0.2500"


@pytest.mark.parametrize(
    ("columns", "train"),
    [
        (60, "  train  loss    0.5000  accuracy    0.5000  size    0.5000"),
        (55, "  train  loss 0.5000  accuracy 0.5000  size 0.5000"),
        (45, "  train  loss 0.5000  accuracy 0.5000"),
        (8, "  train"),
    ],
)
def test_figures_that_do_not_fit_the_terminal_are_left_out(
    run: Any, clock: Any, lines: Any, monkeypatch: pytest.MonkeyPatch, columns: int, train: str
) -> None:
    set_terminal(monkeypatch, columns)
    run_two_tasks(run, LoggingHandler(clock=clock))
    shown = lines()[1].split("\n")
    assert shown[1] == train
    assert max(map(len, shown[1:])) <= columns


def test_figures_can_be_chosen_and_are_then_wrapped(
    run: Any, clock: Any, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_terminal(monkeypatch, 42)
    run_two_tasks(run, LoggingHandler(clock=clock, figures=["train_size.*", "val_loss", "lr"]))
    assert lines()[1].split("\n")[1:] == [
        "  lr    0.0010",
        "  train  size    0.5000",
        "  train  size.far    0.5000",
        "  train  size.near    0.5000",
        "  val    loss    0.2500",
    ]


def test_a_pattern_without_a_figure_is_a_warning(
    run: Any, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run.fit(LoggingHandler(clock=clock, figures=["train_lss", ".*_loss"]), MetricHandler())
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for fact in ('no figure "train_lss"', 'did you mean "train_loss"?', '"train_loss", "lr"'):
        assert fact in warning


def test_the_full_text_of_a_message_has_all_figures(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "multifit")
    run_two_tasks(run, LoggingHandler())
    full = caplog.records[1].full_text
    assert all(f"train_{name}    0.5000" in full for name in TRAIN_NAMES)
    assert "val_digit" in full and "\n" not in full


def test_a_second_fit_continues_counting_epochs(run: Any, clock: Any, lines: Any) -> None:
    run.max_epoch = 2
    handler = LoggingHandler(clock=clock)
    run.fit(handler, epochs=2)
    run.fit(handler, epochs=2)
    assert [line.split("  ")[0] for line in lines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
        "epoch 3/4",
        "epoch 4/4",
    ]
    assert lines()[-1] == "trained 2 epochs, 48 samples, in 6.00 s; stopped: the data is exhausted"


@pytest.mark.parametrize(
    ("event", "step", "done"),
    [
        ("batch_begin", 0, "0 epochs, 0 samples, in 0.00 s"),
        ("batch_end", 1, "1 epoch, 8 samples, in 1.00 s"),
        ("epoch_end", 3, "1 epoch, 24 samples, in 3.00 s"),
        ("batch_begin", 3, "1 epoch, 24 samples, in 3.00 s"),
        ("batch_end", 4, "2 epochs, 32 samples, in 4.00 s"),
    ],
)
def test_an_epoch_counts_from_its_first_batch_on(
    run: Any, clock: Any, lines: Any, event: str, step: int, done: str
) -> None:
    def refuse(estimator: Any) -> None:
        raise KeyboardInterrupt

    handler = LoggingHandler(clock=clock)
    with pytest.raises(KeyboardInterrupt):
        run.fit(handler, At(event, refuse, step), epochs=2)
    run.events.emit("train_end")
    assert lines()[-1] == f"trained {done}; stopped: the data is exhausted"
    run.fit(handler, epochs=0)
    assert lines()[-1] == "trained 0 epochs, 0 samples, in 0.00 s; stopped: the data is exhausted"


def test_messages_within_an_epoch(run: Any, clock: Any, lines: Any) -> None:
    run.max_batch = 20
    validation = ValidationHandler("data", epoch_period=None, batch_period=3)
    run.fit(LoggingHandler(2, clock=clock), validation, batches=10)
    assert lines()[:3] == [
        "training for 20 batches: lr 0.0010",
        "epoch 1  batch  2/10         8 samples/s  train_loss    0.5000",
        "epoch 1  batch  4/10         8 samples/s  train_loss    0.2500",
    ]
    assert len(lines()) == 1 + 5 + 2
    assert run.read == [("train", step) for step in (2, 4, 6, 8, 10)]


def test_messages_without_a_length_and_a_limit(run: Any, clock: Any, lines: Any) -> None:
    run.fit(LoggingHandler(3, clock=clock), known=False)
    assert lines()[0] == "training without a limit: lr 0.0010"
    assert lines()[1] == "epoch 1  batch 3         8 samples/s  train_loss    0.3333"


def test_the_first_message_names_both_limits(run: Any, clock: Any, lines: Any) -> None:
    run.max_epoch, run.max_batch = 3, 7
    run.fit(LoggingHandler(clock=clock))
    assert lines()[0] == "training for 3 epochs or 7 batches: lr 0.0010"


def test_an_evaluation_outside_a_fit_is_logged(run: Any, clock: Any, lines: Any) -> None:
    handler = LoggingHandler(clock=clock)
    run.fit(handler)
    run.evaluate("data", event_handlers=handler)
    assert lines()[-1] == "evaluated in 2.00 s: loss 0.6667"
    run.validation = lambda state: {"loss": 0.5, "size": 0.25, "size.far": 0.125}
    run.evaluate("data", event_handlers=LoggingHandler(clock=clock, figures=r"val_size\..*"))
    assert lines()[-1] == "evaluated in 2.00 s: size.far 0.1250"


def test_a_clock_that_does_not_advance(run: Any, lines: Any) -> None:
    run.fit(LoggingHandler(clock=lambda: 0.0))
    assert "samples/s" in lines()[1]


def test_figures_of_successive_lines_are_aligned(run: Any, clock: Any, lines: Any) -> None:
    """Whatever the sizes of the figures, and though the stages do not measure the same."""
    train = ["loss", "auxiliary", "accuracy", "perplexity"]
    run.train = lambda state: {f"train_{name}": 10.0 ** (state.step - 5) for name in train}
    run.validation = lambda state: {"loss": 7e4, "accuracy": float("nan"), "BLEU": 3e-5, "perplexity": 9.0}
    run.fit(LoggingHandler(clock=clock), MetricHandler(), ValidationHandler("data"), epochs=3)
    stages = [line for record in lines()[1:-1] for line in record.split("\n")[1:]]
    assert [line[:7] for line in stages] == ["  train", "  val  "] * 3
    for name in (*train, "BLEU"):
        assert len({line.index(f" {name} ") for line in stages if f" {name} " in line}) == 1
    ends = {line.index(" perplexity ") for line in stages}
    assert ends == {stages[1].index(" BLEU ") - len(" perplexity ") - 10}
