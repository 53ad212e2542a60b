"""Save a run in checkpoints, and resume it from the newest one."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoints import newest_checkpoint, read_info
from ..distributed.log_once import LogOnce
from ..engines import Engine
from ..handlers.history import History
from ..utils.errors import Problem, SpecError
from ..utils.files import read_json
from ..utils.text import counted, last_line
from .handler_runner import HandlerRunner
from .run import Run

CHANGED = "a resumed run keeps net, spec and trainers: undo the change, or train from scratch without resume"
RUN, HANDLERS, ORDER, ENGINE, WINDOW = "run.json", "handlers", "order", "engine", "window"


class RunCheckpointer:
    """Saves and restores everything that a run needs to resume; logs what cannot be saved or restored."""

    def __init__(self, engine: Engine, run: Run, handlers: HandlerRunner, log_once: LogOnce) -> None:
        self._engine, self._session, self._snapshot = engine, engine.session, engine.snapshot
        self._run, self._handlers, self._log_once = run, handlers, log_once
        self._ranks: list[dict[str, bytes]] = []  # each rank's own state, as files

    def collect(self) -> None:
        """Gather each rank's own state; all ranks must call this before the first rank writes."""
        if not self._session.world.alone:
            states = {HANDLERS: self._handlers.states(), ORDER: self._run.order_state}
            if window := self._session.windows.state():
                states[WINDOW] = window
            self._ranks = self._snapshot.gather_own(states)

    def write(self, folder: Path) -> None:
        """Write everything that the running fit needs to resume into an existing, empty folder."""
        run, state, complete = self._run, self._run.state, self._run.epoch_complete
        snapshot = self._snapshot
        snapshot.write_ranks(folder, self._ranks)
        snapshot.write(folder, self._handlers.evaluated_parameters())
        snapshot.write_tree(folder, HANDLERS, self._handlers.states())
        snapshot.write_tree(folder, ENGINE, self._engine.state())
        if not complete:
            snapshot.write_tree(folder, ORDER, run.order_state)
            if window := self._session.windows.state():
                snapshot.write_tree(folder, WINDOW, window)
        tree = {
            "state": state.to_dict(),
            "complete": complete,
            "stop_reason": None if state.interrupted else state.stop_reason,
            "limits": [run.max_epoch, run.max_batch],
            "epochs": run.history.epochs,
            "history": json.loads(run.history.to_json()),
            "versions": snapshot.versions(),
            "ranks": self._session.world.size,
        }
        (folder / RUN).write_text(json.dumps(tree, indent=2) + "\n", "utf-8")

    def resume(self, folder: str | os.PathLike[str], seed: int | None = None) -> Path | None:
        """Restore the newest intact checkpoint of a folder; return its path, or None if there is none yet.

        Raises ValueError if `folder` is a file, if it has checkpoints but none is intact, or if the run has
        another seed than `seed`, and SpecError if the spec, the net or the trainers are not those of the
        checkpoint.
        """
        run, world, snapshot = self._run, self._session.world, self._snapshot
        checkpoint = self._newest(Path(folder))
        if checkpoint is None:
            return None
        self._session.trainers.get()
        with _valid(checkpoint):
            differences = snapshot.differences(checkpoint)
            tree = read_json(checkpoint / RUN)
            ranks, kept = tree["ranks"], tree["state"]["seed"]
            kept = tree["state"]["fit_seed"] if kept is None else kept
            rank = world.rank if ranks == world.size else 0
            versions = self._other_versions(tree["versions"])
            states = snapshot.read_own_tree(checkpoint, rank, HANDLERS)
        if differences:
            error = SpecError([Problem("spec", f"{checkpoint}: {line}") for line in differences])
            error.at(CHANGED)
            raise error
        if None not in (seed, kept) and seed != kept:
            raise ValueError(
                f"{checkpoint} is of a run with seed={kept}, which it keeps; leave out seed={seed}"
            )
        with _valid(checkpoint):
            if not tree["complete"]:
                self._run.order_state = self._snapshot.read_own_tree(checkpoint, rank, ORDER)
                run.restore_order()  # raises if the state is not valid
                if (checkpoint / f"{WINDOW}.json").exists():
                    self._session.windows.load(snapshot.read_own_tree(checkpoint, rank, WINDOW))
            # sets the random states, too
            lines = snapshot.read(checkpoint, ranks, tree["complete"])
            self._engine.load(snapshot.read_tree(checkpoint, ENGINE))
            # All ranks have the checkpoint's parameters, and running statistics must stay each rank's own.
            self._session.shared.are_shared = True
            self._load(tree)
        for line in lines:
            self._log_once(line)
        self._log_place(checkpoint, versions, ranks)
        for other in self._handlers.load_states(states):
            self._log_once(f"the checkpoint holds the state of {other}, which this fit does not have")
        self._stop_if_finished(tree)
        return checkpoint

    def _log_place(self, checkpoint: Path, versions: Sequence[str], ranks: int) -> None:
        """Log where the run goes on, and what may keep it from ending bit for bit the same."""
        run, logger, now = self._run, self._log_once.logger, self._session.world.size
        place = "" if run.epoch_complete else f", batch {run.state.batch + 2}"
        logger.info("resuming from %s: epoch %d%s", checkpoint.name, run.state.epoch + 1, place)
        if read_info(checkpoint).facts.get("exact") is False:
            logger.info(
                "it was saved outside of a schedule: the resumed run is correct, but not bit for bit the same"
            )
        if why := self._engine.why_inexact():
            logger.info("%s", why)
        if versions:
            logger.info(
                "%s saved it, and %s resumes: correct, but not always bit for bit the same", *versions
            )
        if ranks != now:
            logger.info(
                "%s saved it, and %s resume: the resumed run is correct, but not bit for bit the same",
                *(counted(count, "process", "processes") for count in (ranks, now)),
            )

    def _other_versions(self, saved: Mapping[str, str]) -> list[str]:
        """Return in words which versions saved a checkpoint, and which are here; nothing if equal."""
        now = self._snapshot.versions()
        names = [name for name in now if name != "python" and saved.get(name) != now[name]]
        return [", ".join(f"{name} {each.get(name)}" for name in names) for each in (saved, now) if names]

    def _newest(self, folder: Path) -> Path | None:
        """Return the checkpoint that the first rank finds; all ranks must see its folder."""
        world = self._session.world
        found = self._find(folder) if world.first else None
        name = world.from_first(None if found is None else str(found))
        if name is None:
            return None
        sees = world.gather((Path(name) / RUN).exists())
        if not all(sees):
            blind = ", ".join(str(rank) for rank, seen in enumerate(sees) if not seen)
            raise ValueError(
                f"{name} is not there on rank {blind}: all ranks read a checkpoint from the same disk; "
                "give a folder that all of them can see"
            )
        return Path(name)

    def _find(self, folder: Path) -> Path | None:
        """Return the newest intact checkpoint; log the damaged ones."""
        logger = self._log_once.logger
        if folder.exists() and not folder.is_dir():
            raise ValueError(
                f"resume={str(folder)!r} is a file; give a run's folder, a folder of checkpoints or one "
                f"checkpoint, which is a folder too; {self._snapshot.reader} reads a file of parameters"
            )
        checkpoint, damaged = newest_checkpoint(folder)
        for line in damaged:
            logger.warning("skipped: %s", line)
        if checkpoint is not None:
            return checkpoint.path
        if damaged:
            message = f"no checkpoint in {folder} is intact; remove the damaged ones to start from scratch:"
            raise ValueError("\n  ".join([message, *damaged]))
        logger.info("no checkpoint in %s yet: starting from scratch", folder)
        return None

    def _load(self, tree: Mapping[str, Any]) -> None:
        run = self._run
        run.state.load(tree["state"])
        run.history = History.from_json(json.dumps(tree["history"]))
        if run.history.epochs < tree["epochs"]:
            run.history.open_row()  # a first epoch may have no figure yet
        run.epoch_complete = tree["complete"]
        if run.epoch_complete:
            run.state.epoch += 1

    def _stop_if_finished(self, tree: Mapping[str, Any]) -> None:
        """Stop a run that has reached its limits, or that had stopped by itself under the same limits."""
        run, logger = self._run, self._log_once.logger
        reason = self._handlers.limit_reached()
        if reason is not None:
            logger.info("the run had finished: %s", reason)
        elif tree["limits"] == [run.max_epoch, run.max_batch] and tree["stop_reason"] is not None:
            reason = tree["stop_reason"]
            limit = f"epochs={run.max_epoch}" if run.max_batch is None else f"batches={run.max_batch}"
            logger.warning(
                "the run had finished: %s; nothing is trained: to go on, resume with more than %s",
                reason,
                limit,
            )
        if reason is not None:
            run.state.end(reason)


@contextmanager
def _valid(checkpoint: Path) -> Iterator[None]:
    """Raise ValueError for errors in a checkpoint's contents: correct hashes do not make them valid."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {last_line(error)}"
        raise ValueError(f"{checkpoint} does not hold what multifit writes ({why}); remove it") from error
