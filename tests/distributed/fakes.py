"""Modules in place of torch.distributed and horovod.mxnet, whose processes are threads of this one."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any, Callable

from multifit.distributed import World
from tests.common.ranks import ThreadCommunicator, run_threads, thread_communicators

of_thread: Any = threading.local()  # `communicator` is this rank's, `initialised` what it called


class FakeStore:
    def __init__(self) -> None:
        self.keys: set[str] = set()

    def set(self, key: str, value: str) -> None:
        self.keys.add(key)

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys


def fake_torch() -> dict[str, ModuleType]:
    """Return torch and torch.distributed, in which tensors are NumPy arrays."""
    torch, dist = ModuleType("torch"), ModuleType("torch.distributed")
    store = FakeStore()

    def rendezvous(url: str, timeout: Any) -> Any:
        return iter([(store, of_thread.communicator.rank, of_thread.communicator.size)])

    def initialise(backend: str, **options: Any) -> None:
        of_thread.initialised = backend

    def leave() -> None:
        of_thread.initialised = None

    def all_gather(tensors: list[Any], tensor: Any, group: Any) -> None:
        for row, other in zip(tensors, of_thread.communicator.all_gather(tensor)):
            row[:] = other

    def all_reduce(tensor: Any, group: Any, async_op: bool) -> SimpleNamespace:
        of_thread.communicator.all_reduce([tensor])
        return SimpleNamespace(wait=lambda: None)

    cuda = SimpleNamespace(is_available=lambda: False)
    vars(torch).update(cuda=cuda, Tensor=Any, from_numpy=lambda array: array, distributed=dist)
    vars(dist).update(
        PrefixStore=lambda prefix, store: store,
        rendezvous=rendezvous,
        is_initialized=lambda: getattr(of_thread, "initialised", None) is not None,
        init_process_group=initialise,
        new_group=lambda backend, timeout: "a group of its own",
        get_rank=lambda: of_thread.communicator.rank,
        get_world_size=lambda: of_thread.communicator.size,
        all_reduce=all_reduce,
        broadcast=lambda tensor, first, group: of_thread.communicator.broadcast([tensor]),
        all_gather=all_gather,
        destroy_process_group=leave,
    )
    return {"torch": torch, "torch.distributed": dist}


def fake_horovod(calls: list[str]) -> dict[str, ModuleType]:
    """Return horovod.mxnet; names of sums are added to `calls`."""
    from multifit.gluon.compat import mx
    from multifit.gluon.data.arrays import host_view

    horovod = ModuleType("horovod.mxnet")

    def grouped_allreduce_(arrays: Any, average: bool, name: str, priority: int) -> None:
        calls.append(f"{name}: {[array.shape for array in arrays]}")
        of_thread.communicator.all_reduce([host_view(array) for array in arrays])

    def allgather(array: Any, name: str) -> Any:
        rows = of_thread.communicator.all_gather(array.asnumpy())
        return mx.nd.concat(*[mx.nd.array(row, dtype=row.dtype) for row in rows], dim=0)

    vars(horovod).update(
        init=lambda: None,
        shutdown=lambda: calls.append("shutdown"),
        rank=lambda: of_thread.communicator.rank,
        size=lambda: of_thread.communicator.size,
        grouped_allreduce_=grouped_allreduce_,
        broadcast_=lambda array, root_rank, name: of_thread.communicator.broadcast([host_view(array)]),
        allgather=allgather,
    )
    return {"horovod": ModuleType("horovod"), "horovod.mxnet": horovod}


def run_with(make: Callable[[float], Any], size: int, function: Callable[[World], Any]) -> list[Any]:
    """Call the function with each rank's World of a communicator over the fakes; return the results."""
    results: list[Any] = [None] * size

    def run(inner: ThreadCommunicator) -> None:
        of_thread.communicator, of_thread.initialised = inner, None
        try:
            communicator = make(20)
            # calls come in another thread than this one
            communicator.all_gather = in_rank(inner, communicator.all_gather)
            communicator.all_reduce = in_rank(inner, communicator.all_reduce)
            communicator.broadcast = in_rank(inner, communicator.broadcast)
            results[inner.rank] = function(World(communicator, 20))
        except BaseException as error:
            results[inner.rank] = error

    run_threads(run, [(inner,) for inner in thread_communicators(size)])
    return results


def in_rank(inner: ThreadCommunicator, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        of_thread.communicator = inner
        return function(*arguments)

    return call


class Notes(BaseHTTPRequestHandler):
    """The notes that horovodrun keeps."""

    paths: set[str] = set()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.paths.add(self.path)
        self._answer(200)

    def do_GET(self) -> None:
        self._answer(200 if self.path in self.paths else 404)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def notes_server() -> HTTPServer:
    """Return a server of notes that answers already."""
    server = HTTPServer(("127.0.0.1", 0), Notes)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server
