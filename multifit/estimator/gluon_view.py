"""What handlers for Gluon's Estimator read besides metrics: one trainer, one loss, a batch processor."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Mapping
from zipfile import ZipFile

from ..files import atomic_path
from ..protocols import Trainer
from ..spec import TaskSpec


class BatchProcessor:
    """Trains on single batches and evaluates them with the estimator's methods, like Gluon's BatchProcessor.

    Unlike Gluon's, `fit_batch` also updates the parameters.
    """

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> tuple[Any, ...]:
        """Return data, label, pred and loss of a batch, after training on it."""
        return _arrays(estimator.fit_batch(train_batch))

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> tuple[Any, ...]:
        """Return data, label, pred and loss of a batch, after measuring it."""
        return _arrays(estimator.evaluate_batch(val_batch))


def _arrays(result: Any) -> tuple[Any, ...]:
    data = {name: [slots[name] for slots in result.batch.slots] for name in result.spec.inputs}
    views = {"data": next(iter(data.values())) if len(data) == 1 else data, **result.views()}
    return tuple(views[name] for name in ("data", "label", "pred", "loss"))


def single_loss(spec: TaskSpec) -> Any:
    """Return the function of the one loss, or a dict of the losses' functions."""
    losses = {term.key: term.spec.fn for term in spec.terms}
    return next(iter(losses.values())) if len(losses) == 1 else losses


class _SeveralTrainers:
    """Several trainers as one, with the attributes of the first; it saves all states to one file."""

    def __init__(self, trainers: Mapping[str, Trainer]) -> None:
        self._trainers = dict(trainers)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(iter(self._trainers.values())), name)

    def save_states(self, fname: str) -> None:
        """Save every trainer's states to a zip archive with a file for each."""
        with (
            atomic_path(fname) as path,
            tempfile.TemporaryDirectory() as folder,
            ZipFile(path, "w") as archive,
        ):
            for i, (name, trainer) in enumerate(self._trainers.items()):
                path_of_states = os.path.join(folder, str(i))  # a trainer's name may not be valid for a file
                trainer.save_states(path_of_states)
                archive.write(path_of_states, name)

    def load_states(self, fname: str) -> None:
        """Load what :meth:`save_states` saved."""
        with tempfile.TemporaryDirectory() as folder, ZipFile(fname) as archive:
            for i, (name, trainer) in enumerate(self._trainers.items()):
                path_of_states = os.path.join(folder, str(i))
                with open(path_of_states, "wb") as file:
                    file.write(archive.read(name))
                trainer.load_states(path_of_states)


def single_trainer(trainers: Mapping[str, Trainer]) -> Any:
    """Return the one trainer, or a stand-in for several."""
    return next(iter(trainers.values())) if len(trainers) == 1 else _SeveralTrainers(trainers)
