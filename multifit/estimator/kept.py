"""What of a run is written down so that it can go on, and how it goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping

from ..checkpoints import newest_checkpoint, read_manifest
from ..errors import Problem, SpecError
from ..files import atomic_write
from ..gluon import snapshot
from ..gluon.installed import installed_versions
from ..history import History
from ..state import RunState
from .handler_runner import HandlerRunner
from .observed import Observed

__all__ = ["Kept"]

RUN = "run.json"
HANDLERS = "handlers"
ORDER = "order"


class Kept(Observed):
    """The keeping half of an estimator: checkpoints and random generators."""

    state: RunState
    history: History
    logger: Any
    max_epoch: int | None
    max_batch: int | None
    _audience: HandlerRunner
    _notices: Any
    _epoch_over: bool
    _order: dict[str, Any]

    def write_checkpoint(self, folder: Path) -> None:
        """Write everything of the running fit that going on needs into an empty folder.

        Parameters
        ----------
        folder : Path
            It is there already, and empty; what completes it, names it and checks it is the handler's.

        Raises
        ------
        OSError
            A file cannot be written.
        """
        for lost in snapshot.write(folder, self._engine):
            self._notices(f"checkpoints cannot hold {lost}: after a resume it begins anew")
        snapshot.write_tree(folder, HANDLERS, self._audience.states())
        complete = self._epoch_over and not self.state.interrupted  # else its validation may be left out
        if not complete:
            snapshot.write_tree(folder, ORDER, self._order)
        run = {
            "state": self.state.to_dict(),
            "complete": complete,
            "stop_reason": None if self.state.interrupted else self.state.stop_reason,
            "limits": [self.max_epoch, self.max_batch],
            "epochs": self.history.epochs,
            "history": json.loads(self.history.to_json()),
            "versions": installed_versions(),
        }
        atomic_write(folder / RUN, json.dumps(run, indent=2) + "\n")

    def reseed(self) -> None:
        """Seed MXNet's generator, whose state cannot be saved, from the run's seed and place."""
        snapshot.reseed(self._seed(), self.state.epoch, self.state.step)

    def reseed_epoch(self) -> None:
        """Seed Python's, NumPy's and MXNet's generators from the run's seed and the epoch."""
        self._seed_epoch(self.state.epoch)

    def _seed_epoch(self, epoch: int) -> None:
        snapshot.reseed_epoch(self._seed(), epoch)

    def _restore_random(self, checkpoint: Path) -> None:
        snapshot.read_random(checkpoint)
        if self.state.seed is not None:
            self.reseed()

    def _keep_order(self) -> None:
        """Keep the random states with which the loader makes the order of an epoch.

        A run without a schedule is not seeded anew at an epoch's begin, and what is left of the epoch after a
        resume must not be another order's.
        """
        self._order = snapshot.random_state()

    def _restore_order(self) -> None:
        snapshot.set_random_state(self._order)

    def _seed(self) -> int:
        if self.state.seed is None:
            raise ValueError("the run has no seed: set estimator.state.seed first")
        return self.state.seed

    def _go_on(self, folder: str | os.PathLike[str]) -> Path | None:
        """Restore the newest whole checkpoint; return its path, or None where there is none yet.

        Raises
        ------
        ValueError
            There are checkpoints, but none is whole.
        SpecError
            The spec, the net or the trainers are not those of the checkpoint.
        """
        found = self._newest(Path(folder))
        if found is None:
            return None
        self._engine.bound_trainers()
        differences = snapshot.differences(found, self._engine)
        if differences:
            raise SpecError([Problem("spec", f"{found}: {line}") for line in differences])
        for figure in snapshot.read(found, self._engine):
            self._notices(f'"{figure}" begins anew: the checkpoint could not hold it')
        run = json.loads((found / RUN).read_text("utf-8"))
        self._load(run)
        if not self._epoch_over:
            self._order = snapshot.read_tree(found, ORDER)
        place = "" if self._epoch_over else f", batch {self.state.batch + 2}"
        self.logger.info("going on from %s: epoch %d%s", found.name, self.state.epoch + 1, place)
        if read_manifest(found).facts.get("exact") is False:
            self.logger.info("it is outside any schedule: correct, but not bit for bit as without the stop")
        for name in self._audience.load(snapshot.read_tree(found, HANDLERS)):
            self._notices(f"the checkpoint holds the state of {name}, which this fit does not have")
        self._end_if_ended(run)
        return found

    def _newest(self, folder: Path) -> Path | None:
        found, damaged = newest_checkpoint(folder) if folder.is_dir() else (None, [])
        for line in damaged:
            self.logger.warning("passed over: %s", line)
        if found is None and damaged:
            what = f"no checkpoint in {folder} is whole; remove what is damaged to begin anew:"
            raise ValueError("\n  ".join([what, *damaged]))
        if found is None:
            self.logger.info("no checkpoint in %s yet: beginning anew", folder)
        return found

    def _load(self, run: Mapping[str, Any]) -> None:
        self.state.load(run["state"])
        self.history = History.from_json(json.dumps(run["history"]))
        if self.history.epochs < run["epochs"]:
            self.history.open_row()  # in a first epoch there is no figure yet that could tell of it
        self._epoch_over = run["complete"]
        if self._epoch_over:
            self.state.epoch += 1

    def _end_if_ended(self, run: Mapping[str, Any]) -> None:
        """Stop a run that has reached its limits, or had another reason to stop and is asked for no more."""
        reason = self._audience.reached()
        if reason is None and run["limits"] == [self.max_epoch, self.max_batch]:
            reason = run["stop_reason"]
        if reason is not None:
            self.logger.info("the run had ended: %s", reason)
            self.state.stop(reason)
