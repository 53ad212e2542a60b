"""The property of every case: it ends; if it is refused, nothing has moved, and what is wrong is named."""

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import multifit
from multifit import DataError, HandlerError, MultiEstimator, SpecError, TaskSpec, TrainerError
from multifit.utils.errors import notes

import mxnet as mx  # isort: skip

from . import nets
from .cases import Case, Setup
from .values import UserMistake

PACKAGE = str(Path(multifit.__file__).parent)
OURS = (SpecError, DataError, TrainerError, HandlerError, UserMistake)
HANGS = 30  # seconds


def judge(case: Case) -> str:
    """Run a case; return the name of the error that refused it. Raises if the property fails."""
    with _limit(HANGS):
        try:
            run(case)
        except (AssertionError, KeyboardInterrupt):
            raise
        except Exception as error:
            if not case.breaks_rules and not named(error, case):
                raise AssertionError(f"a raw {type(error).__name__} in {case}") from error
            return type(error).__name__
    return ""


def run(case: Case) -> None:
    """Do what a case says."""
    with suppress(mx.base.MXNetError):
        mx.nd.waitall()  # errors of the case before, which nobody waited for
    setup = Setup(case.changes)
    spec = setup.spec()
    if case.what == "declare":
        assert repr(spec) and spec.summary()
        TaskSpec.combine(a=spec, b=spec, shared=spec.slot_names[:1])
        return
    net = nets.net(setup.net_kind)
    estimator = Watched(net, spec, **{"trainers": setup.trainers(), **setup.fields["estimator"]})
    before, options = parameters(net), setup.fields[case.what] if case.what in ("fit", "evaluate") else {}
    try:
        getattr(estimator, case.what)(setup.data(), **options)
    finally:
        assert case.what == "fit" or not moved(before, net), f"{case.what} moved parameters in {case}"
        assert not estimator.moved_by_a_refused_batch, f"a refused batch moved parameters in {case}"


class Watched(MultiEstimator):
    """Remembers whether a refused batch moved parameters."""

    moved_by_a_refused_batch = False

    def fit_batch(self, batch: Any) -> Any:
        before = parameters(self.net)
        try:
            return super().fit_batch(batch)
        except Exception as error:
            if 'trainers["' in "".join(notes(error)):  # of an optimizer, after the forward pass
                before = {name: value for name, value in before.items() if "running" not in name}
            self.moved_by_a_refused_batch = moved(before, self.net)
            raise


def parameters(net: Any) -> dict[str, np.ndarray]:
    """Return all initialised parameters, running statistics among them."""
    found = net._collect_params_with_prefix() if hasattr(net, "_collect_params_with_prefix") else {}
    return {name: p.data().asnumpy() for name, p in found.items() if p._data is not None}


def moved(before: dict[str, np.ndarray], net: Any) -> bool:
    after = parameters(net)
    return any(not np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def named(error: Exception, case: Case) -> bool:
    """Whether an error is one of ours, is that of the user's code with its place, or names an argument."""
    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line or ""
    if isinstance(error, OURS) or getattr(error, "__notes__", None):
        return True
    if isinstance(error, TypeError) and "argument" in str(error):
        return True  # Python's own, about an argument that is missing or unknown
    if isinstance(error, (OSError, ValueError)) and any(
        place.endswith("resume") for place, _ in case.changes
    ):
        return True  # the operating system's own, which names the file
    return frames[-1].filename.startswith(PACKAGE) and line.startswith("raise ")


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
