"""The property of every case: it works, or is refused in our words within a second, and nothing has moved."""

from __future__ import annotations

import signal
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator

import numpy as np

import multifit
from multifit import DataError, HandlerError, MultiEstimator, SpecError, TaskSpec, TrainerError

import mxnet as mx  # isort: skip

from . import nets
from .calls import CALLS, called
from .cases import Case, Setup
from .values import UserMistake

PACKAGE = str(Path(multifit.__file__).parent)
HERE = str(Path(__file__).parent)
USERS = (HERE, "mxnet/gluon/", "mxnet/metric", "mxnet/initializer", "mxnet/optimizer", "mxnet/lr_scheduler")
PATHS = ("folder", "path", "resume")
SECONDS = 1.0  # of processor time
HANGS = 30  # seconds


def judge(case: Case) -> str:
    """Run a case; return the name of the error that refused it. Raises if the property fails."""
    refusal, seconds = _timed(case)
    if refusal is not None:
        problem = wrong(refusal, case)
        if problem:
            raise AssertionError(f"{problem} in {case}") from refusal
    if seconds >= SECONDS:  # a busy machine may have taken it, but not twice from a quick case
        seconds = min(seconds, _timed(case)[1])
    assert seconds < SECONDS, f"{seconds:.1f} s for {case}"
    return type(refusal).__name__ if refusal is not None else ""


def _timed(case: Case) -> tuple[BaseException | None, float]:
    """Run a case; return the error that refused it, and the seconds of processor time."""
    start = time.process_time()
    refusal: BaseException | None = None
    with _limit(HANGS):
        try:
            run(case)
        except (AssertionError, KeyboardInterrupt):
            raise
        except BaseException as error:
            refusal = error
    return refusal, time.process_time() - start


def run(case: Case) -> None:
    """Do what a case says."""
    with suppress(mx.base.MXNetError):
        mx.nd.waitall()  # errors of the case before, which nobody waited for
    if case.what in CALLS:
        repr(called(case.what, dict(case.changes)))
        return
    setup = Setup(case.changes)
    spec = setup.spec()
    if case.what == "declare":
        assert repr(spec) and spec.summary()
        TaskSpec.combine(a=spec, b=spec, shared=spec.slot_names[:1])
        return
    net = nets.net(setup.net_kind)
    estimator = Watched(net, spec, **{"trainers": setup.trainers(), **setup.fields["estimator"]})
    before = parameters(net)
    try:
        _call(estimator, case.what, setup)
    except Exception:
        assert case.what == "fit" or not moved(before, net), f"{case.what} moved parameters in {case}"
        assert not estimator.moved_by_a_refused_batch, f"a refused batch moved parameters in {case}"
        raise
    assert case.what == "fit" or not moved(before, net), f"{case.what} moved parameters in {case}"


class Watched(MultiEstimator):
    """Remembers whether a refused batch moved parameters."""

    moved_by_a_refused_batch = False

    def fit_batch(self, batch: Any) -> Any:
        before = parameters(self.net)
        try:
            return super().fit_batch(batch)
        except Exception:
            self.moved_by_a_refused_batch = moved(before, self.net)
            raise


def _call(estimator: MultiEstimator, what: str, setup: Setup) -> None:
    data = setup.data()
    if what in ("fit", "evaluate"):
        getattr(estimator, what)(data, **setup.fields[what])
    else:
        getattr(estimator, what)(data)


def parameters(net: Any) -> dict[str, np.ndarray]:
    """Return all initialised parameters, running statistics among them."""
    found = net._collect_params_with_prefix() if hasattr(net, "_collect_params_with_prefix") else {}
    return {name: p.data().asnumpy() for name, p in found.items() if p._data is not None}


def moved(before: dict[str, np.ndarray], net: Any) -> bool:
    after = parameters(net)
    return any(not np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def wrong(error: BaseException, case: Case) -> str:
    """Return why an error is not one of ours, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = any(frame.filename.startswith(PACKAGE) for frame in frames)
    text = str(error)
    if getattr(error, "__notes__", None) and not _raised_by_us(error):
        return _not_the_users(error)
    if isinstance(error, TypeError) and not inside and "argument" in text:
        return ""  # Python's own, about an argument that is missing or unknown
    ours = isinstance(error, (SpecError, DataError, TrainerError, HandlerError)) or _raised_by_us(error)
    if isinstance(error, UserMistake) and inside:
        return ""  # a loader's own error passes through
    if isinstance(error, OSError) and any(place.endswith(PATHS) for place, _ in case.changes):
        return ""  # the operating system's own, which names the file
    if not ours:
        return f"a raw {type(error).__name__}"
    if not text or len(text) > 20_000 or "Traceback (most recent" in text:
        return f"a useless message, {text[:200]!r}"
    return ""


def _raised_by_us(error: BaseException) -> bool:
    """Whether an error is a ValueError of a ``raise`` in the package, and none of Python's own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        type(error) is ValueError
        and last.filename.startswith(PACKAGE)
        and (last.line or "").startswith("raise ")
    )


def _not_the_users(error: BaseException) -> str:
    """Return what is wrong with an exception that has a note: it must come from the user's code."""
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    last = max((i for i, (file, _) in enumerate(frames) if file.startswith(PACKAGE)), default=-1)
    graph = last >= 0 and frames[last][0].endswith("cached_graph.py")  # the user's net and losses, traced
    called = frames[last + 1 :]
    symbol = called and called[0][0].endswith("mxnet/symbol/symbol.py") and called[0][1] == "__call__"
    if graph or symbol or any(part in file for file, _ in called for part in USERS):
        return ""  # multifit itself calls no symbol
    return f"a {type(error).__name__} that is not the user's"


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def expired(*_: Any) -> None:
        raise AssertionError(f"no end after {seconds} s")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
