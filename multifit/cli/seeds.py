"""Seeds of the random numbers that a task file draws: at its top level, and in each of its functions."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from ..seeding import mixed, seed_everything
from .record import RunRecord

FUNCTION = 3  # a stream of random numbers besides those of gluon/
DEFAULT = 0


@dataclass(frozen=True)
class Seeds:
    """Seeds all generators before each function of a task file, by the run's seed and the function's name.

    So a function draws the same numbers in every command, whichever other functions the command calls, and
    in which order. What multifit itself draws when it makes the estimator and trains is drawn under the
    run's seed.
    """

    seed: int
    functions: Collection[str]  # the file's

    def __call__(self, name: str) -> None:
        """Seed the generators for a function."""
        is_in_file = name in self.functions
        seed_everything(
            mixed(self.seed, FUNCTION, int.from_bytes(name.encode(), "big")) if is_in_file else self.seed
        )


def choose_file_seed(options: argparse.Namespace, record: RunRecord | None) -> int | None:
    """Return the seed under which the file is executed, as ``--seed`` says it, or as in the earlier run.

    The file's own seed is not known before. None for a run of an older version, whose data would change: it
    drew all numbers from one stream.
    """
    if record is not None and record.file_seed is None:
        return None
    earlier = DEFAULT if record is None else record.file_seed
    return earlier if options.seed is None else int(options.seed)
