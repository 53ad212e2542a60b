"""`connect`: what it chooses, and what it says where it cannot."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import multifit
from multifit.distributed import ALONE, connect
from multifit.distributed.connect import versions

module = sys.modules["multifit.distributed.connect"]


class One:
    """A communicator of one process."""

    name, rank, size, asynchronous = "one", 0, 1, False
    all_reduce = broadcast = all_gather = close = None

    def __init__(self, timeout=None):
        self.timeout = timeout


@pytest.fixture
def launcher(monkeypatch):
    """Set which launcher started this process, and which libraries are installed."""

    def set_launcher(name, *installed):
        monkeypatch.setattr(module, "launched", lambda: name)
        monkeypatch.setattr(module, "find_spec", lambda library: library in installed or None)

    return set_launcher


@pytest.fixture
def made(monkeypatch):
    """Make a communicator of one process, whatever the kind; return the list of kinds."""
    kinds = []
    monkeypatch.setattr(module, "_make", lambda kind, timeout: kinds.append(kind) or One(timeout))
    return kinds


@pytest.mark.parametrize(
    "kind, name, installed, expected",
    [
        ("auto", "horovodrun", (), "horovod"),
        ("auto", "torchrun", (), "torch"),
        ("auto", "mpirun", ("horovod", "torch"), "horovod"),
        ("auto", "srun", ("torch",), "torch"),
        ("torch", "horovodrun", (), "torch"),
        ("horovod", "mpirun", (), "horovod"),
    ],
)
def test_the_launcher_chooses(launcher, made, kind, name, installed, expected):
    launcher(name, *installed)
    world = connect(kind, timeout=5)
    assert made == [expected]
    assert world.timeout == world.communicator.timeout == 5


@pytest.mark.parametrize("kind, name", [("auto", None), ("none", None), ("none", "horovodrun")])
def test_one_process_is_alone(launcher, kind, name):
    launcher(name)
    assert connect(kind) is ALONE


def test_a_communicator_of_ones_own_is_used():
    communicator = One()
    assert connect(communicator).communicator is communicator


@pytest.mark.parametrize(
    "kind, name, error, message",
    [
        ("tourch", None, ValueError, "connect: kind is 'tourch' .did you mean \"torch\""),
        ("torch", None, ValueError, "no launcher started this one: torchrun --nproc-per-node 2 -m multifit"),
        ("horovod", None, ValueError, "no launcher started this one: horovodrun -np 2 multifit"),
        ("auto", "mpirun", ImportError, r"mpirun started several .*pip install horovod"),
    ],
)
def test_errors_say_what_to_do(launcher, kind, name, error, message):
    launcher(name)
    with pytest.raises(error, match=message):
        connect(kind)


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan"), float("inf")])
def test_the_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ValueError, match="timeout"):
        connect("none", timeout=timeout)


def test_a_missing_library_names_its_extra(launcher, monkeypatch):
    launcher("torchrun")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "multifit.distributed.torch_communicator", raising=False)
    with pytest.raises(ImportError, match=r'"torch" needs .* pip install torch'):
        connect("torch")


def test_a_communicator_is_imported_when_it_is_needed(launcher, monkeypatch):
    launcher("torchrun")
    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace(TorchCommunicator=One))
    assert connect().communicator.name == "one"


def test_who_cannot_be_reached_is_an_error_of_a_peer(launcher, monkeypatch):
    def refuse(timeout):
        raise OSError("no route to host")

    launcher("torchrun")
    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace(TorchCommunicator=refuse))
    with pytest.raises(multifit.PeerError, match="could not reach the others by torch: no route to host"):
        connect()


def test_versions_are_those_of_what_computes():
    assert set(versions()) >= {"Python", "numpy", "mxnet"}
