"""InterruptHandler, with real signals to this process."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from multifit import MultiEstimator
from multifit.checkpoints import newest_checkpoint
from multifit.handlers import CheckpointHandler, InterruptHandler, StoppingHandler

from .conftest import At

import mxnet as mx  # isort: skip

# Python 3.12 warns of every fork beside threads; MXNet has some, and knows what to do.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL}  # fmt: skip
FIRST = "ending the fit; a second Ctrl-C or SIGTERM ends the run at once"


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Start with the default signal handlers, and restore those of before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, *DEFAULTS)}
    for number, handler in DEFAULTS.items():
        signal.signal(number, handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def installed() -> dict[Any, Any]:
    return {number: signal.getsignal(number) for number in DEFAULTS}


def at(event: str, step: int, action: Callable[[Any], Any]) -> At:
    return At(event, action, step, priority=-10.0)


def send(name: str) -> Callable[[Any], None]:
    return lambda estimator: os.kill(os.getpid(), signal.Signals[name])


@pytest.mark.parametrize("names", [["SIGINT"], ["SIGTERM"], ["SIGHUP", "SIGHUP"], ["SIGINT", "SIGHUP"]])
def test_the_running_batch_is_finished(run: Any, log: Any, names: list[str]) -> None:
    """A terminal that is closed may send two SIGHUP, and a further one ends nothing."""
    run.fit(InterruptHandler(), *(at("batch_begin", 4, send(name)) for name in names), epochs=9)
    assert run.state.step == 5 and run.state.interrupted and run.state.stop_reason == names[0]
    assert log.messages[0] == f"{names[0]}: {FIRST}"
    assert installed() == DEFAULTS


@pytest.mark.parametrize("event", ["batch_end", "epoch_end", "train_end"])
def test_a_fit_that_ends_anyway_keeps_its_reason(run: Any, event: str) -> None:
    """What a checkpoint says of the reason is right, and the caller knows of the signal."""
    seen: list[bool] = []
    look = At("epoch_end", lambda estimator: seen.append(estimator.state.interrupted), 6, 2000.0)
    stopping = StoppingHandler(**({"max_batch": 6} if event == "batch_end" else {"max_epoch": 2}))
    run.fit(InterruptHandler(), at(event, 6, send("SIGINT")), stopping, look, epochs=9)
    assert run.state.interrupted and seen == [False]
    assert run.state.stop_reason == ("6 batches" if event == "batch_end" else "2 epochs")


def test_a_second_fit_without_a_signal_is_not_interrupted(run: Any) -> None:
    handler, seen = InterruptHandler(), list[Any]()
    run.fit(handler, at("epoch_end", 3, send("SIGINT")), epochs=2)
    assert run.state.step == 3 and run.state.stop_reason == "SIGINT"
    run.fit(handler, at("batch_end", 4, lambda _: seen.append(installed())))
    assert run.state.step == 6 and run.state.stop_reason is None
    assert not set(seen[0].items()) & set(DEFAULTS.items()) and installed() == DEFAULTS


@pytest.mark.parametrize("names", [("SIGINT", "SIGINT"), ("SIGTERM", "SIGINT")])
def test_a_second_ctrl_c_ends_at_once(run: Any, names: tuple[str, str]) -> None:
    handler = InterruptHandler()
    with pytest.raises(KeyboardInterrupt):
        run.fit(handler, *(at("batch_begin", 4, send(name)) for name in names), epochs=9)
    handler.train_end(run)  # as in every real fit, however it ends
    assert run.state.step == 4  # the batch was not finished
    assert installed() == DEFAULTS


def in_child(action: Callable[[], Any]) -> int:
    """Do something in a forked process, which then ends with 7; return how it ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_a_second_sigterm_ends_the_process(run: Any) -> None:
    twice = [at("batch_begin", 4, send("SIGTERM")) for _ in range(2)]
    assert os.WTERMSIG(in_child(lambda: run.fit(InterruptHandler(), *twice, epochs=9))) == signal.SIGTERM


@pytest.mark.parametrize(
    ("name", "theirs"), [("SIGHUP", signal.SIG_IGN), ("SIGTERM", lambda number, frame: None)]
)
def test_a_signal_that_is_handled_or_ignored_already_is_left_alone(run, log, name, theirs) -> None:
    signal.signal(signal.Signals[name], theirs)
    run.fit(InterruptHandler(), at("batch_begin", 1, send(name)))
    assert run.state.step == 3 and not log.messages
    assert signal.getsignal(signal.Signals[name]) == theirs


def test_only_the_given_signals_are_handled(run: Any) -> None:
    run.fit(InterruptHandler("SIGUSR1"), at("batch_begin", 1, send("SIGUSR1")))
    assert run.state.stop_reason == "SIGUSR1"
    with pytest.raises(KeyboardInterrupt):
        run.fit(InterruptHandler(["SIGUSR1"]), at("batch_begin", run.state.step, send("SIGINT")))


def test_a_handler_installed_later_stays(run: Any) -> None:
    """It may call ours, which ends the process at once if its fit is over."""
    chained: list[Any] = []

    def chain(estimator: Any) -> None:
        chained.append(signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, lambda number, frame: chained[0](number, frame))

    run.fit(InterruptHandler(), at("batch_begin", 1, chain))
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(0)


def test_outside_the_main_thread_nothing_is_installed(run: Any) -> None:
    with ThreadPoolExecutor(1) as threads:
        threads.submit(run.fit, InterruptHandler()).result()
    assert run.state.step == 3


def test_a_worker_ignores_ctrl_c_and_ends_at_sigterm(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's workers are forked during a fit, inherit the handler, and are not the fit's process."""
    ended: list[int] = []

    def fork(estimator: Any) -> None:
        ended[:] = [in_child(lambda name=name: send(name)(estimator)) for name in ("SIGINT", "SIGTERM")]
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            signal.raise_signal(signal.SIGINT)
            threading.Event().wait(0)

    run.fit(InterruptHandler(), at("batch_begin", 1, fork))
    assert (os.WEXITSTATUS(ended[0]), os.WTERMSIG(ended[1])) == (7, signal.SIGTERM)
    assert run.state.step == 3 and not run.state.interrupted


def test_an_interrupted_fit_saves_a_checkpoint_and_its_epoch_counts_once(tmp_path: Path, log: Any) -> None:
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    data = [(mx.nd.ones((4, 3)), mx.nd.zeros(4))] * 3

    def fit(*handlers: Any, **options: Any) -> Any:
        estimator = MultiEstimator(net, mx.gluon.loss.SoftmaxCrossEntropyLoss())
        handlers = [CheckpointHandler(tmp_path), *handlers]
        return estimator.fit(data, data, epochs=4, event_handlers=handlers, **options)

    assert fit(at("epoch_end", 6, send("SIGINT"))).epochs == 2
    assert [text for text in log.messages if FIRST in text] == [f"SIGINT: {FIRST}"]
    checkpoint, skipped = newest_checkpoint(tmp_path)
    assert skipped == [] and checkpoint.path == tmp_path / "checkpoints" / "epoch-0002-step-00000006"
    saved = mx.gluon.nn.Dense(2, in_units=3)
    saved.load_parameters(str(checkpoint.path / "net.params"))
    assert (saved.weight.data() == net.weight.data()).asnumpy().all()
    assert fit(resume=tmp_path).epochs == 4
