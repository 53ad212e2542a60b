"""``--distributed``: what is different in a process that trains with others."""

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

from ..distributed import KINDS, World, connect
from ..distributed.connect import Seconds
from ..distributed.log_once import get_logger
from ..estimator.run_folder import RANKS
from ..handlers.printing import FORMAT
from ..utils.arguments import checked_value
from ..utils.errors import PeerError
from .taskfile import as_usage_error


def add_distributed_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say with which processes this one trains."""
    parser.add_argument(
        "--distributed",
        choices=KINDS,
        default="auto",
        help="train with the processes that horovodrun or torchrun started (default: auto, if one did)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long processes wait for each other before they fail (default: 60)",
    )


def connected(options: argparse.Namespace) -> World:
    """Return the processes that train together; raise UsageError if they cannot be connected."""
    with as_usage_error(ImportError, PeerError, ValueError):
        checked_value("--timeout", options.timeout, Seconds)
        return connect(options.distributed, options.timeout)


@contextmanager
def first_shows(world: World, output: Path) -> Iterator[Path]:
    """Let only the first rank print and write results; yield the folder to which this rank writes.

    The other ranks do the same work, because drawing a picture may need the predictions of all ranks. But
    their folder is temporary, and what they print is dropped. Their log goes to ``ranks/rank-0001.log`` in
    the output folder.
    """
    if world.first:
        yield output
        return
    path = output / RANKS / f"rank-{world.rank:04}.log"
    file: logging.Handler = logging.NullHandler()
    with suppress(OSError):  # a file that cannot be written is not worth the run
        path.parent.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    file.setFormatter(logging.Formatter(FORMAT))
    logger = get_logger()
    handlers, logger.handlers = logger.handlers, [file]
    child = logger.getChild(f"rank-{world.rank}")  # the estimator's
    child.setLevel(logging.INFO)
    child.info("rank %d of %d: %s, process %d", world.rank, world.size, gethostname(), os.getpid())
    try:
        with (
            TemporaryDirectory() as folder,
            open(os.devnull, "w", encoding="utf-8") as nothing,
            redirect_stdout(nothing),
        ):
            yield Path(folder)
    except BaseException as error:
        child.error("the run ends with an error", exc_info=error)
        raise
    finally:
        logger.handlers = handlers
        file.close()
