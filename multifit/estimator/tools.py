"""What an estimator does beside its loop: searching for a learning rate, and handing the net on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..gluon.export import export
from ..gluon.lr_finder import find_learning_rate
from ..gluon.rate_search import RateSearch
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
