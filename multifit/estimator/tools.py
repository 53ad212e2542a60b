"""What an estimator does beside its loop: searching for a rate, profiling, handing the net on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable

from ..gluon.export.export import export
from ..gluon.lr_finder import find_learning_rate
from ..gluon.profiling import profile
from ..gluon.rate_search import RateSearch
from ..profile import Profile
from .observed import Observed

__all__ = ["Tools"]


class Tools(Observed):
    """The tools of an estimator: they leave its net and its run as they are."""

    def find_learning_rate(
        self,
        data: Any,
        start: float = 1e-6,
        end: float = 1.0,
        batches: int = 100,
        trainer: str | None = None,
    ) -> RateSearch:
        """Train with a rate that grows from batch to batch, and leave everything as it was.

        Parameters
        ----------
        data : DataLoader, DataIter or re-iterable of batches
            Read as often as it takes.
        start, end : float
            The first and the last rate.
        batches : int
            How many steps there are between them.
        trainer : str, optional
            Whose rate grows; the others keep theirs. Default: all grow.

        Returns
        -------
        RateSearch
            `rates`, `losses`, the `suggestion`, and ``plot()``.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit.
        ValueError
            A rate or number is not valid.
        RuntimeError
            A handler of a running fit calls it.
        """
        return find_learning_rate(self, data, start, end, batches, trainer)

    def profile(
        self,
        train_data: Any,
        batches: int = 50,
        event_handlers: Any = None,
        clock: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.thread_time,
    ) -> Profile:
        """Measure where the time of a training step goes, and leave everything as it was.

        Some batches are trained on as in a fit: once undisturbed, once with a wait for the engine after each
        part of a step, and once under MXNet's profiler. Parameters, trainers, metrics, history, counters,
        NumPy's and Python's random state are put back; a net that was not initialised is; MXNet's random
        generator may advance. A `fit_batch` of one's own is not called.

        Parameters
        ----------
        train_data : DataLoader, DataIter or re-iterable of batches
            Read as often as it takes.
        batches : int
            How many steps each measurement has.
        event_handlers : handler or list of handlers, optional
            Called as in a fit that ends amid its first epoch, each on the watch. What they write, they write,
            and what they remember, they remember.
            None of the defaults is added.
        clock, busy : callable
            Return seconds: those that go by, and those that this thread works.

        Returns
        -------
        Profile
            ``summary()``, ``plot()``, ``to_json()``; the parts, the operators, the advice.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit; the data is empty, or can be read only once.
        ValueError
            `batches` is no whole number of at least 1, or a handler cannot be used.
        RuntimeError
            A handler of a running fit calls it.
        """
        return profile(self, train_data, batches, event_handlers, clock, busy)

    def export(self, folder: str | os.PathLike[str], data: Any = None, format: str = "gluon") -> list[Path]:
        """Write the net, as it evaluates, for use elsewhere; it stays as it is.

        Parameters
        ----------
        folder : str or path
            Where ``net-symbol.json``, ``net-0000.params`` and ``export.json`` go, or ``net.onnx``.
        data : array, tuple, dict, list or loader, optional
            As `predict` takes it; needed only where nothing was fitted, checked, evaluated or predicted yet.
        format : {"gluon", "onnx"}
            ``gluon.SymbolBlock.imports`` reads the first; the second needs ``multifit[onnx]``.

        Returns
        -------
        list of Path
            The files; inputs and outputs bear the spec's names. They appear whole or not at all.

        Raises
        ------
        SpecError
            The net works on arrays alone and cannot be made a graph.
        ValueError
            An unknown format, inputs of unknown shapes, or an operator that ONNX lacks.
        ImportError
            ONNX is not installed.
        """
        return export(self._engine, folder, data, format)
