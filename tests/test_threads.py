"""Threads: what there is room for, who else is there, what is told of it, and what the command sets."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multifit.cores import Neighbours, allowed_cpus, physical_cores, quota
from multifit.threads import Machine, Setting, advice, is_command, setting, settle, threads_of


def files(root: Path, named: dict[str, str]) -> Path:
    for name, text in named.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


# ------------------------------------------------------------------------------------ the machine


V1 = "4:memory:/box\n3:cpu,cpuacct:/box/inner\n0::/\n"
CGROUPS: dict[str, tuple[dict[str, str], float]] = {
    "none": ({}, math.inf),
    "version 2": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
    "no limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
    "the tightest above": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
        },
        2.0,
    ),
    "version 1": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/box/inner/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/box/inner/cpu.cfs_period_us": "100000\n",
        },
        3.0,
    ),
    "version 1, of another controller": (
        {"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000"},
        math.inf,
    ),
}


@pytest.mark.parametrize(("named", "expected"), CGROUPS.values(), ids=CGROUPS)
def test_the_quota_of_control_groups(tmp_path: Path, named: dict[str, str], expected: float) -> None:
    assert quota(files(tmp_path, named)) == expected


def test_hyperthreads_are_one_core(tmp_path: Path) -> None:
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files(tmp_path, {siblings.format(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)})
    assert physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert physical_cores({1, 3}, tmp_path) == 1
    assert physical_cores({7, 8}, tmp_path) == 2  # nobody says anything of them


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.here()
    assert 1 <= machine.usable <= machine.cpus == len(allowed_cpus()) and machine.cores <= machine.cpus
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert len(allowed_cpus()) == os.cpu_count()


class Times:
    """A clock and a processor time that the test moves on."""

    def __init__(self) -> None:
        self.now = self.own = 0.0


def neighbours(root: Path, times: Times, cpus: set[int]) -> Neighbours:
    return Neighbours(cpus, root, lambda: times.now, lambda: times.own)


def stat(root: Path, *seconds: float) -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{i} {int(s * hertz)} 0 0 99 99 0 0 0 0 0" for i, s in enumerate(seconds)]
    files(root, {"proc/stat": "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 5 0 0"]) + "\n"})


def test_what_others_keep_busy(tmp_path: Path) -> None:
    times = Times()
    stat(tmp_path, 10, 20, 30)
    others = neighbours(tmp_path, times, {0, 1})
    assert others.busy() == 0.0  # no time has passed
    times.now, times.own = 2.0, 1.0
    stat(tmp_path, 12, 21, 90)
    assert others.busy() == pytest.approx(
        1.0
    )  # 3 seconds in 2, of which 1 is ours; the third CPU is not ours
    times.now, times.own = 4.0, 3.5
    assert others.busy() == 0.0


def test_where_nobody_can_tell(tmp_path: Path) -> None:
    times = Times()
    others = neighbours(tmp_path, times, {0})
    times.now, times.own = 1.0, -5.0
    assert others.busy() == 0.0


# ------------------------------------------------------------------------------------ what is told


def test_what_mxnet_takes() -> None:
    assert threads_of({}, 8) == (4, False) and threads_of({}, 1) == (1, False)
    assert threads_of({"OMP_NUM_THREADS": "3"}, 8) == (3, True)
    assert threads_of({"OMP_NUM_THREADS": "3,2", "MXNET_OMP_MAX_THREADS": "5"}, 8) == (3, True)
    assert threads_of({"OMP_NUM_THREADS": "many", "MXNET_OMP_MAX_THREADS": "5"}, 8) == (5, True)


TWO, EIGHT = Machine(2, 2), Machine(8, 4)
TOLD: dict[str, tuple[tuple[Any, ...], str]] = {
    "more than cores": (
        (4, True, TWO),
        "OMP_NUM_THREADS=4 on 2 cores: threads wait for each other; OMP_NUM_THREADS=2 may be several times",
    ),
    "more than cores, and somebody else": (
        (4, True, TWO, 1.0),
        "on 2 cores: threads wait for each other; OMP_NUM_THREADS=1 ",
    ),
    "more than granted": ((4, False, Machine(8, 4, 1.5)), "MXNet takes 4 on 1 core: threads wait"),
    "somebody else": (
        (2, True, TWO, 1.04),
        "OMP_NUM_THREADS=2, while other processes keep 1.0 of 2 cores busy: each step waits for its slowest "
        "thread; OMP_NUM_THREADS=1 may",
    ),
    "many others": (
        (8, True, EIGHT, 20.0),
        "keep 20.0 of 8 cores busy: each step waits for its slowest thread; OMP_NUM_THREADS=1 ",
    ),
    "workers": (
        (2, True, TWO, 0.0, 2),
        "OMP_NUM_THREADS=2 and 2 worker processes of the loader on 2 cores: where the workers are busy, each "
        "step waits; OMP_NUM_THREADS=1 ",
    ),
    "cores idle": (
        (1, False, TWO),
        "OMP_NUM_THREADS is not set and MXNet takes 1 of 2 cores: large nets are faster with "
        "OMP_NUM_THREADS=2 while nothing else runs",
    ),
}
QUIET: dict[str, tuple[Any, ...]] = {
    "one thread is nobody's trouble": (1, True, TWO, 2.0, 4),
    "as many as cores": (2, True, TWO, 0.4),
    "MXNet's own, of hyperthreads": (4, False, EIGHT),
    "room for the workers": (4, True, EIGHT, 0.0, 4),
    "cores that are not idle": (1, False, TWO, 1.0),
    "the user's own choice": (1, True, EIGHT),
}


@pytest.mark.parametrize(("given", "text"), TOLD.values(), ids=TOLD)
def test_what_costs_speed_is_told(given: tuple[Any, ...], text: str) -> None:
    found = advice(*given)
    assert found is not None and text in found


@pytest.mark.parametrize("given", QUIET.values(), ids=QUIET)
def test_what_costs_nothing_is_not(given: tuple[Any, ...]) -> None:
    assert advice(*given) is None


def test_it_is_told_once(tmp_path: Path) -> None:
    nobody = neighbours(tmp_path, Times(), {0})
    here = Setting({"OMP_NUM_THREADS": "2"}, TWO, nobody)
    assert here.tell() is None
    assert "2 worker processes" in str(here.tell(2))
    assert here.tell(2) is None


# ------------------------------------------------------------------------------------ what is set


@pytest.mark.parametrize(
    ("environment", "machine", "expected"),
    [
        ({}, TWO, {}),
        ({}, Machine(64, 32, 2.0), {"OMP_NUM_THREADS": "2"}),
        ({}, Machine(64, 32, 0.5), {"OMP_NUM_THREADS": "1"}),
        ({"OMP_NUM_THREADS": "9"}, Machine(64, 32, 2.0), {"OMP_NUM_THREADS": "9"}),
        ({"MXNET_OMP_MAX_THREADS": "9"}, Machine(64, 32, 2.0), {"MXNET_OMP_MAX_THREADS": "9"}),
    ],
)
def test_only_what_is_unset_and_too_much(environment: Any, machine: Machine, expected: Any) -> None:
    settle(environment, machine)
    assert environment == expected


def test_the_command_is_known_by_its_name() -> None:
    assert is_command("/usr/bin/multifit", ()) and is_command("C:/multifit.exe", ())
    assert is_command("-m", ["python", "-X", "dev", "-m", "multifit.cli", "train"])
    assert not is_command("train.py", ["python", "train.py", "multifit.cli"])
    assert not is_command("-c", ())


@pytest.mark.parametrize(("program", "expected"), [("multifit", "3"), ("own.py", "None")])
def test_the_library_sets_nothing(monkeypatch: pytest.MonkeyPatch, program: str, expected: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: cls(64, 32, 3.0)))
    monkeypatch.setattr(Neighbours, "busy", lambda self: 0.0)
    found = setting.__wrapped__()
    assert str(os.environ.pop("OMP_NUM_THREADS", None)) == expected
    assert found.tell() is None if expected == "3" else "MXNet takes 32 on 3 cores" in str(found.tell())


FIT = """
import os
os.environ["OMP_NUM_THREADS"] = "500"
import numpy as np
from multifit import MultiEstimator
from mxnet import gluon
net, x = gluon.nn.Dense(1), np.zeros((2, 1), "float32")
os.environ["OMP_NUM_THREADS"] = "1"  # too late
for _ in range(2):
    MultiEstimator(net, gluon.loss.L2Loss()).fit([(x, x)], epochs=1)
"""


def test_a_fit_tells_it_at_its_begin_and_only_the_first() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = [i for i, line in enumerate(lines) if line.startswith("OMP_NUM_THREADS=500 on ")]
    begins = [i for i, line in enumerate(lines) if line.startswith("training for")]
    assert len(told) == 1 and told[0] < begins[0] and len(begins) == 2
