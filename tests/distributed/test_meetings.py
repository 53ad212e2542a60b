"""What is known of ranks that are lost, and how a process ends that cannot reach them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from multifit import PeerError
from multifit.distributed import World
from multifit.distributed.communicator import CALLED_BY_SEVERAL
from multifit.distributed.meetings import Meetings
from multifit.distributed.processes import fate, this_process

OTHERS = {1: "has ended", 2: None, 3: "is stopped"}


@pytest.fixture(autouse=True)
def ended(monkeypatch):
    """Let this process end as usual; return how often it was to end otherwise."""
    calls = []
    monkeypatch.setattr("multifit.distributed.meetings.end_without_waiting", lambda: calls.append(True))
    return calls


def communicator_of(size, **methods):
    methods.setdefault("all_gather", lambda vector: time.sleep(1))
    none = dict.fromkeys(CALLED_BY_SEVERAL)
    return SimpleNamespace(name="fake", rank=0, size=size, asynchronous=False, **{**none, **methods})


def error_of(communicator, timeout=0.05, **attributes):
    meetings = Meetings(communicator, timeout)
    vars(meetings).update(attributes)
    with pytest.raises(PeerError) as caught:
        meetings.exchange("a batch")
    return caught.value


def test_of_two_ranks_the_other_is_late(ended):
    error = error_of(communicator_of(2))
    assert str(error) == 'rank 0 waited 0.05 s for the others at "a batch": rank 1 has not arrived'
    assert error.ranks == (1,) and ended == [True]


def test_notes_tell_who_is_late():
    left = []
    notes = {"leave_note": left.append, "read_notes": lambda text: [0, 2] if text == "1" else []}
    error = error_of(communicator_of(4, **notes))
    assert left == ["1"] and error.ranks == (1, 3)
    assert str(error).endswith("rank 1 has not arrived; rank 3 has not arrived")


@pytest.mark.parametrize(
    "read", [lambda text: 1 / 0, lambda text: time.sleep(1), lambda text: [], lambda text: [1]]
)
def test_notes_that_cannot_be_read_or_are_not_kept_tell_nothing(read, monkeypatch):
    monkeypatch.setattr("multifit.distributed.meetings.READING", 0.05)
    error = error_of(communicator_of(3, leave_note=lambda text: 1 / 0, read_notes=read))
    assert str(error).endswith("this rank cannot tell which one it is") and error.ranks == ()


def test_without_notes_nothing_is_known_of_several():
    assert error_of(communicator_of(3)).ranks == ()


def test_processes_that_ended_or_are_stopped_are_named(monkeypatch):
    here = this_process()
    processes = [replace(here, pid=pid) for pid in range(4)]
    monkeypatch.setattr("multifit.distributed.meetings.fate", lambda process: OTHERS.get(process.pid))

    def lose(vector):
        raise ConnectionError("closed " + 500 * "!")

    error = error_of(communicator_of(4, all_gather=lose), processes=processes)
    assert error.ranks == (1, 3) and isinstance(error.__cause__, ConnectionError)
    assert f"rank 1 ({here.host}, process 1) has ended; rank 3 ({here.host}, process 3) is stopped" in str(
        error
    )
    assert "(fake: closed !!!" in str(error) and len(str(error)) < 500


def test_a_rank_that_is_stopped_is_not_waited_for_when_a_sum_has_failed(monkeypatch):
    monkeypatch.setattr("multifit.distributed.meetings.fate", lambda process: OTHERS.get(process.pid))
    world = World(communicator_of(4, all_gather=lambda vector: 1 / 0), 0.05)
    world.communicator.asynchronous = True
    world._meetings.processes = [replace(this_process(), pid=pid) for pid in range(4)]
    with (
        pytest.raises(PeerError, match="lost the others .*: rank 1 .* ended; rank 3 .* is stopped"),
        world.guarded(),
    ):
        raise RuntimeError("the sum has failed")


@pytest.mark.parametrize("asynchronous, error", [(True, PeerError), (False, ValueError)])
def test_an_error_of_the_engine_may_be_due_to_ranks_that_are_lost(asynchronous, error):
    def lose(vector):
        raise ConnectionError("closed")

    world = World(communicator_of(2, all_gather=lose), 5)
    world.communicator.asynchronous = asynchronous
    with pytest.raises(error) as caught, world.guarded():
        raise ValueError("the sum has failed")
    assert asynchronous == isinstance(caught.value.__context__, ConnectionError)
    with pytest.raises(KeyboardInterrupt), World(world.communicator, 5).guarded():
        raise KeyboardInterrupt


def test_closing_what_hangs_or_fails(ended):
    for close in (lambda: time.sleep(1), lambda: 1 / 0):
        world = World(communicator_of(2, close=close), 0.05)
        world.close()
    assert ended == [True]


def test_the_fate_of_a_process():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process = replace(this_process(), pid=child.pid)
        assert fate(process) is None
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: fate(process) == "is stopped")
        child.kill()
        wait_until(lambda: fate(process) == "has ended")  # nobody has waited for it: a zombie
    finally:
        child.kill()
        child.wait()
    assert fate(process) == "has ended"
    assert fate(replace(process, host="another")) is None
    assert fate(replace(process, space="of a container")) is None


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_a_process_ends_with_its_status_although_a_library_waits():
    code = (
        "import ctypes, sys\n"
        "from multifit.distributed.end_process import end_without_waiting\n"
        "library = ctypes.CDLL(None)\n"
        "library.on_exit(library.pause, None)\n"
        "end_without_waiting()\n"
        "print('printed')\n"
        "sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (3, "printed\n")


def test_other_systems_end_as_they_do(monkeypatch):
    from multifit.distributed import end_process

    monkeypatch.setattr(end_process.ctypes, "CDLL", lambda name: SimpleNamespace())
    end_process.end_without_waiting.__wrapped__()


def test_a_process_without_name_spaces(monkeypatch):
    def fail(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", fail)
    assert this_process().space == "" and str(this_process()).endswith(f", process {os.getpid()}")
