"""One rank of a run in which rank 1 fails: ``failing_rank.py HOW TIMEOUT``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, Callable

from multifit.distributed import World, connect
from multifit.gluon.compat import mx
from multifit.gluon.distributed.collectives import all_reduce


def fail(how: str, world: World) -> None:
    """Fail, hang, end, or go to another place in the program."""
    print("FAILS", time.time(), flush=True)
    ways: dict[str, Callable[[], Any]] = {
        "ends": lambda: os._exit(0),
        "hangs": lambda: time.sleep(120),
        "is elsewhere": lambda: world.meet("another place"),
    }
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how == "raises":
        raise ValueError("a sample cannot be decoded")
    else:
        ways[how]()


def train(how: str, world: World) -> None:
    """Meet and sum ten times; rank 1 fails after the fifth."""
    gradients = [mx.nd.ones((300, 100)) for _ in range(10)]
    for step in range(10):
        world.meet("a batch", step)
        all_reduce(world, gradients)
        if step == 5 and world.rank == 1:
            fail(how, world)
        mx.nd.waitall() if world.rank else gradients[0].wait_to_read()


def main() -> None:
    """Train, and print when and why the training ends."""
    how, timeout = sys.argv[1:]
    world = connect(timeout=float(timeout))
    try:
        with world.guarded():
            train(how, world)
    except BaseException as error:
        print("ENDS", time.time(), type(error).__name__, " | ".join(str(error).splitlines()), flush=True)
        raise
    finally:
        world.close()


if __name__ == "__main__":
    main()
