"""``python -m multifit`` and the command ``multifit``."""

import os
import sys

from .distributed import local_size
from .utils.output import Output
from .utils.threads import VARIABLES, usable_cores

INTERRUPTED = 130  # the status that shells give a program that SIGINT, signal 2, has ended


def run() -> int:
    """Let MXNet use all cores unless the user chose a number of threads, then run the command.

    The processes of a run that share a machine share its cores.

    The number of threads must be set before mxnet is imported. Returns the exit status: 130 after Ctrl-C,
    which may come while modules are imported; otherwise, see `multifit.cli.main`.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ[VARIABLES[0]] = str(max(1, usable_cores() // local_size()))
    # until Python has flushed them at its end
    sys.stdout, sys.stderr = Output(sys.stdout), Output(sys.stderr)
    try:
        from .cli import main

        return main()
    except KeyboardInterrupt:
        print("multifit: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(run())
