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

    A function thus draws the same numbers in every command, no matter which other functions the command
    calls, and in which order. Before multifit itself makes the estimator and trains, the generators get the
    run's seed.
    """

    seed: int
    functions: Collection[str]  # the names of the file's functions

    def __call__(self, name: str) -> None:
        """Seed the generators for a function."""
        is_in_file = name in self.functions
        seed_everything(
            mixed(self.seed, FUNCTION, int.from_bytes(name.encode(), "big")) if is_in_file else self.seed
        )


def choose_file_seed(options: argparse.Namespace, record: RunRecord | None) -> int | None:
    """Return the seed under which the file is executed: that of ``--seed``, else the earlier run's, else 0.

    The file's own setting ``seed`` is not known before the file is executed. Returns None for a run of an
    older version, which drew all numbers from one stream: its data would change.
    """
    if record is not None and record.file_seed is None:
        return None
    earlier = DEFAULT if record is None else record.file_seed
    return earlier if options.seed is None else int(options.seed)
