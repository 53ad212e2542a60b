"""`connect`: what it chooses, and what it says where it cannot."""

import sys
from types import SimpleNamespace

import pytest

from multifit import PeerError
from multifit.distributed import ALONE, World, connect, local_rank, local_size
from multifit.distributed.connect import LIBRARIES, launched_with

module = sys.modules["multifit.distributed.connect"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("kind", "variable", "library"),
    [
        ("auto", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "horovod"),
        ("auto", "WORLD_SIZE", "torch"),
        ("horovod", "ANY", "horovod"),  # mpirun may have started it
        ("auto", "ANY", None),
        ("none", "ANY", None),
        ("none", "WORLD_SIZE", None),
    ],
)
def test_the_launcher_chooses(monkeypatch, kind, variable, library):
    timeouts: list[float] = []

    class Made(World):
        def __init__(self, timeout):
            timeouts.append(timeout)

    name = LIBRARIES[library or "torch"].target.partition(":")[2]
    monkeypatch.setattr(module, "import_module", lambda target: SimpleNamespace(**{name: Made}))
    monkeypatch.setenv(variable, "2")
    made = connect(kind, timeout=5)
    assert made is ALONE if library is None else isinstance(made, Made) and timeouts == [5]


def raises(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    ("imported", "error", "message"),
    [
        (raises(ImportError("no module")), ImportError, '"torch" needs .* pip install torch .*no module'),
        (
            lambda target: SimpleNamespace(TorchWorld=raises(OSError("no route to host"))),
            PeerError,
            "could not reach the others by torch: no route to host",
        ),
    ],
)
def test_what_fails_is_named(monkeypatch, imported, error, message):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(module, "import_module", imported)
    with pytest.raises(error, match=message):
        connect()


TORCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
HOROVOD = {"HOROVOD_RANK": "5", "HOROVOD_LOCAL_RANK": "3", "HOROVOD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize(
    ("environment", "library", "rank", "size"),
    [
        ({}, None, 0, 1),
        ({"LOCAL_RANK": "1"}, None, 0, 1),  # nobody started several
        (TORCH, "torch", 1, 2),
        (HOROVOD, "horovod", 3, 4),
    ],
)
def test_launchers_are_recognised(environment, library, rank, size):
    assert launched_with(environment) == library
    assert (local_rank(environment), local_size(environment)) == (rank, size)
