"""``multifit train FILE``: plan, training, table of figures, and a folder of results."""

import argparse
import os
import re
from dataclasses import asdict
from pathlib import Path

from ..checkpoints import checkpoints_folder, list_checkpoints
from ..distributed import World
from ..distributed.log_once import get_logger
from ..estimator.run_folder import RECORD, RunRecord, RunWriter, is_unused, read_record, remove_run, written
from ..handlers import CheckpointHandler, LoggingHandler, ProgressBar
from ..handlers.handler import unwrapped
from ..handlers.history import LAST_EPOCH_HEADERS, History, last_epoch_rows, over_seeds, seed_folders
from ..handlers.triggers import Every
from ..utils.locks import locked
from ..utils.tables import table
from ..utils.text import counted, shown
from .common import add_task_arguments, count, quiet
from .ranks import add_distributed_arguments, connected, first_shows
from .task import Choices, Task, output_folder
from .taskfile import UsageError, as_usage_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add_task_arguments(parser)
    parser.add_argument("--epochs", type=count, help="how long to train (default: the file's epochs)")
    parser.add_argument(
        "--output", metavar="DIR", help="folder for results (default: runs/<name of the file>)"
    )
    parser.add_argument(
        "--figures",
        metavar="PATTERN",
        action="append",
        type=_pattern,
        help="figures to show while it trains: a name or a regular expression, such as 'val_.*'; may be "
        "repeated (default: the loss and one figure per task)",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="K[epochs|batches]",
        type=_schedule,
        help="save a checkpoint every 1epochs or 500batches, for example; runs resume from it bit for bit",
    )
    text = "train only these tasks: losses, groups of the file's balance, or parts of a combined spec"
    parser.add_argument("--only", metavar="TASK", nargs="+", help=text)
    text = "train N runs, with seed, seed + 1, …, in the folders seed-0, seed-1, … of the output folder"
    parser.add_argument("--seeds", metavar="N", type=count, help=text)
    add_distributed_arguments(parser)
    used = parser.add_mutually_exclusive_group()
    used.add_argument(
        "--resume", action="store_true", help="resume from the newest intact checkpoint in the output folder"
    )
    used.add_argument(
        "--overwrite", action="store_true", help="first remove the run of this file in the output folder"
    )


def run(options: argparse.Namespace) -> int:
    """Train one run, or one for each of several seeds; returns the exit status of the last."""
    world, folder = connected(options), output_folder(options)
    if options.seeds is None:
        return _run(options, world)
    here, earlier, seed = os.getcwd(), seed_folders(folder), options.seed
    if seed is None and options.resume and earlier:
        seed = int(earlier[0].name.removeprefix("seed-"))  # the runs go on that are there
    first: int = world.from_first(Choices(options).seed if seed is None else seed)
    runs = [folder / f"seed-{seed}" for seed in range(first, first + options.seeds)]
    os.chdir(here)  # the file may have changed it
    if (folder / RECORD).exists():
        raise UsageError(f"{folder} is itself a run: give several seeds another --output")
    for each in runs:
        _earlier_record(options, each, world)  # refuses folders that are in use
    for each in set(earlier) - set(runs) if options.overwrite and world.first else ():
        remove_run(each, options.file)
    for seed, each in enumerate(runs, first):
        single = argparse.Namespace(**vars(options) | {"seed": seed, "output": str(each)})
        status = _run(single, world)
        os.chdir(here)
        if status:
            return status
    if world.first:
        mean, spread = over_seeds([History.from_json(each / "history.json") for each in runs])
        title = f"after the last epoch, mean ± standard deviation of {counted(len(runs), 'seed')}"
        print(f"\n{title}\n{table(LAST_EPOCH_HEADERS, last_epoch_rows(mean.last, spread.last))}")
    return 0


def _run(options: argparse.Namespace, world: World) -> int:
    """Check, train, and write the plan, the history, the parameters and the pictures.

    With several processes, only the first one prints and writes. Returns 0, or 130 if Ctrl-C, SIGTERM or
    SIGHUP ended the training early; the figures so far are written all the same. What does not fit is
    refused before the folder changes.
    """
    folder = output_folder(options)
    resume = folder.absolute() if options.resume else None  # the file may change the working directory
    with quiet(options.quiet):
        record = _earlier_record(options, folder, world)
        with first_shows(world, folder) as options.output:
            task = Task(Choices(options, record, resumes=True), world=world)
            if record is not None and task.choices.seed != record.seed:
                raise UsageError(
                    f"{folder} is trained with seed {record.seed}, which a resumed run keeps: "
                    f"leave out seed {task.choices.seed}, or train from scratch without --resume"
                )
            for name, value in task.choices.kept.items():
                get_logger(world).info("%s=%s is kept from the run, not the file's", name, shown(value))
            # what cannot be used raises before the folder changes, and before the data is made
            task.epochs, task.results["context"]  # noqa: B018
            task.output.mkdir(parents=True, exist_ok=True)
            with locked(task.output, get_logger(world).warning):
                _train(task, record, resume, options)
    return 130 if task.estimator.state.interrupted else 0


def _earlier_record(options: argparse.Namespace, folder: Path, world: World) -> RunRecord | None:
    """Return the record of the run to resume, which the first rank reads from its disk for all ranks.

    Raises UsageError if it cannot be read, or if a run that starts from scratch finds the folder in use.
    """
    record = None
    with as_usage_error(ValueError):
        if world.first and options.resume:
            if (folder / RECORD).exists() or list_checkpoints(checkpoints_folder(folder)):
                record = read_record(folder, options.file)
        elif world.first and not is_unused(folder):
            if not options.overwrite:
                raise UsageError(
                    f"{folder} is not empty: --resume continues the run in it, --overwrite removes that run, "
                    "--output DIR writes elsewhere"
                )
            read_record(folder, options.file)  # only a run of this file is removed
    fields = world.from_first(None if record is None else asdict(record))
    return None if fields is None else RunRecord(**fields)


def _train(task: Task, resumed: RunRecord | None, resume: Path | None, options: argparse.Namespace) -> None:
    """Train, write everything, then print the last figures and what was written, even if that is not all."""
    folder, every = task.output, options.checkpoint_every
    writer = RunWriter(folder, _record(task, options), resumed)
    plan = task.check()
    given = task.handlers
    if every is not None and any(isinstance(unwrapped(each), CheckpointHandler) for each in given):
        raise UsageError(
            f"handlers() of {task.file.path} returns a CheckpointHandler, whose every= is the schedule: "
            "leave out --checkpoint-every"
        )
    handlers = [
        *given,
        LoggingHandler(figures=options.figures),
        ProgressBar(enabled=False if options.quiet else None, figures=options.figures),
    ]
    if not options.quiet:
        print(f"{plan}\n")
    if options.overwrite and task.results["world"].first:
        with as_usage_error(ValueError):
            remove_run(folder, options.file)
    if every is None and resumed is not None and resumed.checkpoint_every is not None:
        every = _schedule(resumed.checkpoint_every)
    history = None
    try:
        with writer.writing(task.estimator, handlers, every, task.plots, task.pictures) as handlers:
            history = task.fit(handlers, resume)
    finally:
        if history is not None:
            if not options.quiet:
                print(f"\nafter epoch {history.epochs}\n{history.summary()}\n")
            stopped = task.estimator.state.interrupted
            end = f"interrupted in epoch {history.epochs}" if stopped else counted(history.epochs, "epoch")
            print(f"{end}; wrote {task.shown_output}: {', '.join(written(folder, writer.record))}")


def _record(task: Task, options: argparse.Namespace) -> RunRecord:
    chosen = task.choices
    return RunRecord(
        file=task.file.path.name,
        settings=task.file.texts,
        only=chosen.only,
        seed=chosen.seed,
        file_seed=chosen.file_seed,
        epochs=task.epochs,
        devices=chosen.devices,
        engine=chosen.engine,
        compile=chosen.compile,
        deterministic=chosen.deterministic,
        precision=chosen.precision,
        command=options.command,
    )


def _schedule(text: str) -> Every:
    match = re.fullmatch(r"([1-9][0-9]{,8}) *(epochs?|batch(?:es)?)?", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a schedule; give one such as 1epochs or 500batches'
        )
    return Every(int(match[1]), (match[2] or "epoch")[:5])


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f'"{text}" is not a regular expression: {error}') from None
    return text
