"""The programs that start the processes of a run, recognised by the variables that they set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

# The first launcher that has a variable set started this process: horovodrun may use mpirun, and mpirun srun.
LAUNCHERS = {
    "horovodrun": ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK"),
    "torchrun": ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"),  # or anything that sets what torch reads
    "mpirun": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "srun": ("SLURM_STEP_NUM_TASKS",),
}
LOCAL_SIZES = (
    "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",
)  # fmt: skip
LOCAL_RANKS = (
    "HOROVOD_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
)  # fmt: skip
TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANKS = {  # by launcher, the variables with rank and size
    "mpirun": [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ],
    "srun": [("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")],
}


def launched(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return which launcher started this process as one of several: a key of `LAUNCHERS`, or None.

    A job step of Slurm with one task, such as an interactive one, is not one of several.
    """
    for launcher, variables in LAUNCHERS.items():
        if any(name in environment for name in variables):
            alone = launcher == "srun" and environment["SLURM_STEP_NUM_TASKS"] == "1"
            return None if alone else launcher
    return None


def local_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many processes of the run share this machine, as far as the launcher tells."""
    sizes = (re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get(name, "")) for name in LOCAL_SIZES)
    return next((int(size[1]) for size in sizes if size is not None), 1)


def local_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this process among those of the run on this machine; 0 if it is alone."""
    ranks = (environment[name] for name in LOCAL_RANKS if environment.get(name, "").isdecimal())
    return int(next(ranks, 0)) if launched(environment) is not None else 0


def torch_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that torch.distributed reads, computed from the launcher's if it set others.

    With Slurm, the processes meet at the first host, on a port computed from the job's number. mpirun does
    not name a host to meet at.
    """
    found = {name: environment[name] for name in TORCH if name in environment}
    for rank, size in RANKS.get(launched(environment) or "", []):
        if size in environment:
            found = {"RANK": environment[rank], "WORLD_SIZE": environment[size], **found}
    if "SLURM_STEP_NODELIST" in environment:
        job = int(environment.get("SLURM_JOB_ID", 0))
        host = first_host(environment["SLURM_STEP_NODELIST"])
        found = {"MASTER_ADDR": host, "MASTER_PORT": str(20_000 + job % 20_000), **found}
    return found


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's list: ``gpu07`` of ``gpu[07-09,12],cpu1``."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return nodes if match is None else "".join(part or "" for part in match.groups())
