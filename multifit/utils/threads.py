"""OpenMP threads: the command's default, and a warning if a fit has more threads than cores."""

import os
from functools import cache

import psutil

VARIABLES = ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS")  # as MXNet reads them; the first has precedence


def usable_cores() -> int:
    """Return the number of cores that this process may run on; two hyperthreads are one core."""
    process = psutil.Process()  # it has no cpu_affinity on macOS
    cpus: int = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count()
    return min(cpus, psutil.cpu_count(logical=False) or cpus)


@cache
def omp_threads() -> int:
    """Return the number of threads that MXNet uses: what the environment says, else half of the CPUs.

    MXNet reads its environment only when it is imported, so this is called then, and its value is cached.
    """
    for text in (os.environ.get(name, "").split(",")[0].strip() for name in VARIABLES):
        if text.isdigit() and int(text) > 0:
            return int(text)
    return max(1, (os.cpu_count() or 1) // 2)


def oversubscription(workers: int) -> str | None:
    """Return a warning if threads and a loader's worker processes outnumber the cores, else None."""
    threads, cores = omp_threads(), usable_cores()
    if threads == 1 or threads + workers <= cores:
        return None
    shared = f"{threads} threads and {workers} loader workers share {cores} cores, so each step waits"
    return f"{shared}; set {VARIABLES[0]}={max(1, cores - workers)} before Python starts"
