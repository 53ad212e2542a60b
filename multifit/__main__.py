"""``python -m multifit`` and the command ``multifit``."""

from __future__ import annotations

import os
import sys

from .distributed.launchers import local_size
from .output import safe_output
from .threads import VARIABLES, usable_cores


def run() -> int:
    """Let MXNet use all cores unless the user chose a number of threads, then run the command.

    The processes of a run that share a machine share its cores.

    The number must be set before mxnet is imported. Returns the exit status; see `multifit.cli.main`.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = str(max(1, usable_cores() // local_size()))
    with safe_output():
        from .cli import main

        return main()


if __name__ == "__main__":
    sys.exit(run())
