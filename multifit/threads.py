"""OpenMP's number of threads: what MXNet takes, when that costs speed, and what the command line sets.

MXNet's threads wait for each other many times in each step, spinning. One core that somebody else uses holds
all of them up, so that two threads on a busy machine are several times slower than one.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Mapping, MutableMapping, Sequence

from .cores import Neighbours, allowed_cpus, physical_cores, quota

__all__ = ["Machine", "Setting", "advice", "is_command", "setting", "settle", "threads_of"]

NAME = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Machine:
    """What there is to run on.

    Attributes
    ----------
    cpus : int
        Those that this process may run on.
    cores : int
        The cores behind them: of one core's hyperthreads, one counts.
    granted : float
        How many cores' time the control groups grant.
    """

    cpus: int
    cores: int
    granted: float = math.inf

    @classmethod
    def here(cls) -> Machine:
        """Return the one that this process is on."""
        cpus = allowed_cpus()
        return cls(len(cpus), physical_cores(cpus), quota())

    @property
    def usable(self) -> int:
        """For how many threads there is room."""
        return max(1, int(min(self.cpus, self.granted)))


def threads_of(environment: Mapping[str, str], cpus: int) -> tuple[int, bool]:
    """Return the number of threads that MXNet takes, and whether the environment says so.

    Where it does not, MXNet takes half of the CPUs, for it counts on hyperthreads.
    """
    for name in (NAME, "MXNET_OMP_MAX_THREADS"):
        said = environment.get(name, "").split(",")[0].strip()
        if said.isdigit() and int(said) > 0:
            return int(said), True
    return max(1, cpus // 2), False


def advice(threads: int, said: bool, machine: Machine, busy: float = 0.0, workers: int = 0) -> str | None:
    """Return what to tell of a number of threads that costs speed; None where it does not.

    Parameters
    ----------
    threads, said : int, bool
        See :func:`threads_of`.
    machine : Machine
        What it runs on.
    busy : float
        How many cores other processes keep busy.
    workers : int
        Processes that the training data has of its own.
    """
    room = machine.usable
    own = f"{NAME}={threads}" if said else f"{NAME} is not set and MXNet takes {threads}"
    free = max(1, min(room, int(machine.cpus - busy + 0.5)))
    if threads > room:
        return _told(f"{own} on {_cores(room)}", "threads wait for each other", free)
    if threads > 1 and threads + busy > machine.cpus + 0.5:
        why = f"{own}, while other processes keep {busy:.1f} of {_cores(machine.cpus)} busy"
        return _told(why, "each step waits for its slowest thread", free)
    if threads > 1 and threads + workers > room:
        why = f"{own} and {workers} worker processes of the loader on {_cores(room)}"
        return _told(why, "where the workers are busy, each step waits", max(1, room - workers))
    idle = min(machine.cores, room, int(machine.cpus - busy + 0.5))
    if not said and idle > threads:
        return f"{own} of {_cores(room)}: large nets are faster with {NAME}={idle} while nothing else runs"
    return None


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count != 1)}"


def _told(what: str, why: str, better: int) -> str:
    return f"{what}: {why}; {NAME}={better} may be several times faster (set it before Python starts)"


class Setting:
    """What MXNet was imported with: it reads its environment then, and never again.

    Parameters
    ----------
    environment : mapping
        Of the process.
    machine : Machine
        What it runs on.
    neighbours : Neighbours
        Who else uses the machine.
    """

    def __init__(self, environment: Mapping[str, str], machine: Machine, neighbours: Neighbours) -> None:
        self._threads = threads_of(environment, machine.cpus)
        self._machine, self._neighbours, self._told = machine, neighbours, False

    @property
    def threads(self) -> int:
        """How many threads MXNet takes."""
        return self._threads[0]

    def tell(self, workers: int = 0) -> str | None:
        """Return :func:`advice` on it, at this moment; once."""
        if self._told:
            return None
        text = advice(*self._threads, self._machine, self._neighbours.busy(), workers)
        self._told = text is not None
        return text


@cache
def setting() -> Setting:
    """Return this process's setting; in the command ``multifit``, what is unset is set at the first call.

    So the first call comes before MXNet is imported.
    """
    machine = Machine.here()
    if is_command(sys.argv[0], getattr(sys, "orig_argv", ())):
        settle(os.environ, machine)
    return Setting(os.environ, machine, Neighbours(allowed_cpus()))


def is_command(program: str, arguments: Sequence[str]) -> bool:
    """Whether a process is the command ``multifit``, and with it the environment ours.

    Parameters
    ----------
    program : str
        ``sys.argv[0]``
    arguments : sequence of str
        ``sys.orig_argv``, which Python 3.9 lacks.
    """
    return Path(program).stem == "multifit" or ("-m", "multifit.cli") in zip(arguments, arguments[1:])


def settle(environment: MutableMapping[str, str], machine: Machine) -> None:
    """Set what is unset, where MXNet would take more threads than there is room for.

    It never takes more than MXNet would: as soon as something else runs, that is slower. Nor does it follow
    the machine's load: another number of threads may sum in another order, and a run that goes on after a
    stop must end bit for bit as without.
    """
    threads, said = threads_of(environment, machine.cpus)
    if not said and threads > machine.usable:
        environment[NAME] = str(machine.usable)
