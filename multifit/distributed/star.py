"""Direct connections of rank 0 with every other rank, faster than a library for small messages."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Callable, NamedTuple

import numpy as np

from .header import Vector, pad

RANKS = 64  # for more, rank 0 would have too many messages to send (not measured)
MAX_GATHER_BYTES = 4096  # bytes of a vector to gather: what meetings send, and short texts
MAX_SUM_BYTES = 2**22  # bytes that rank 0 receives for a sum; for more, gloo is as fast
CONNECTING = 5.0  # seconds: all ranks connect at the same moment
OFFER = 512  # bytes
TOKEN, NUMBER = 32, 4  # bytes

Gather = Callable[[Vector], "list[Vector]"]


class Offer(NamedTuple):
    """Where rank 0 listens, and what tells a rank from a stranger."""

    host: str
    port: int
    token: str


class Star:
    """Gathers and sums vectors of all ranks: each sends its own to rank 0, which sends the result to each.

    Two messages, one after the other, take a fraction of the time of a library's collective operation. The
    library is used for large vectors, for many ranks, and if some rank cannot connect to rank 0. When a rank
    ends, its connection closes, and the others' operations raise OSError.

    Parameters
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.
    host : str
        A name by which the others reach rank 0; rank 0's argument is the one that is used.
    gather : function
        The library's own gather: takes the vector of this rank, and returns those of all ranks.
    """

    def __init__(self, rank: int, size: int, host: str, gather: Gather) -> None:
        self._rank, self._size, self._host, self._library = rank, size, host, gather
        self._connections: list[socket.socket] | None = None  # None before the first vector is gathered
        self._other = np.empty(0, np.uint8)  # rank 0's buffer for a vector of another rank

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vectors of all ranks, uint8 of shape (n,); n is equal on all ranks."""
        if self._connections is None:
            few = 1 < self._size <= RANKS
            self._connections = _connected(self._rank, self._size, self._host, self._library) if few else []
            if hasattr(os, "register_at_fork"):  # else a loader's workers would keep them open
                os.register_at_fork(after_in_child=self.close)
        if not self._connections or vector.nbytes > MAX_GATHER_BYTES:
            return self._library(vector)
        with self._guarded() as connections:
            if self._rank:
                connections[0].sendall(vector.data)
                rows = _received(connections[0], vector.nbytes * self._size)
            else:
                others = [_received(connection, vector.nbytes) for connection in connections]
                rows = np.concatenate([vector, *others])
                for connection in connections:
                    connection.sendall(rows.data)
        return list(rows.reshape(self._size, vector.size))

    def takes(self, size: int) -> bool:
        """Whether the ranks should sum this many bytes here; they must have gathered something before."""
        return bool(self._connections) and size * (self._size - 1) <= MAX_SUM_BYTES

    def all_reduce(self, vector: Vector) -> None:
        """Replace the vector by its sum over the ranks, added in the order of ranks."""
        content = vector.view(np.uint8).data
        with self._guarded() as connections:
            if self._rank:
                connections[0].sendall(content)
                _receive(connections[0], content)
            else:
                if self._other.size < vector.nbytes:
                    self._other = np.empty(vector.nbytes, np.uint8)
                other = self._other[: vector.nbytes]
                for connection in connections:
                    _receive(connection, other.data)
                    with np.errstate(all="ignore"):  # gradients are checked where they are used
                        vector += other.view(vector.dtype)
                for connection in connections:
                    connection.sendall(content)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections or ():
            connection.close()

    @contextmanager
    def _guarded(self) -> Iterator[list[socket.socket]]:
        try:
            yield self._connections or []
        except OSError:
            self.close()  # so that the others' operations end too
            raise


def _connected(rank: int, size: int, host: str, gather: Gather) -> list[socket.socket]:
    """Return rank 0's connections in the order of ranks, or another rank's one; [] if one cannot connect."""
    listener, offer = _listen(host, size) if rank == 0 else (None, b"")
    offered = gather(pad(offer, OFFER))[0].tobytes().rstrip(b"\0")
    connections: list[socket.socket] = []
    with suppress(OSError, ValueError):  # a firewall, or a name that means nothing here
        first = Offer(*json.loads(offered))
        connections = [_connect(first, rank)] if listener is None else _accept(listener, first, size)
    if listener is not None:
        listener.close()
    here = np.array([bool(connections)], np.uint8)
    if all(row[0] for row in gather(here)):
        return connections
    for connection in connections:
        connection.close()
    return []


def _listen(host: str, size: int) -> tuple[socket.socket | None, bytes]:
    """Return a socket that listens and an offer for the others; None and nothing where that fails."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(("", 0), family=family, backlog=size)
    except (OSError, UnicodeError):  # not a name
        return None, b""
    offer = Offer(host, listener.getsockname()[1], secrets.token_hex(TOKEN // 2))
    return listener, json.dumps(offer).encode()


def _accept(listener: socket.socket, offer: Offer, size: int) -> list[socket.socket]:
    connections: dict[int, socket.socket] = {}
    listener.settimeout(CONNECTING)
    with ExitStack() as opened:
        for _ in range(size - 1):
            connection = opened.enter_context(listener.accept()[0])
            connection.settimeout(CONNECTING)
            token, number = np.split(_received(connection, TOKEN + NUMBER), [TOKEN])
            if not hmac.compare_digest(token.tobytes(), offer.token.encode()):
                raise ConnectionError("an unknown process has connected")
            connections[int.from_bytes(number.tobytes(), "little")] = _ready(connection)
        opened.pop_all()  # they stay open
    return [connections[rank] for rank in sorted(connections)]


def _connect(offer: Offer, rank: int) -> socket.socket:
    with ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((offer.host, offer.port), CONNECTING))
        connection.sendall(offer.token.encode() + rank.to_bytes(NUMBER, "little"))
        _ready(connection)
        opened.pop_all()  # it stays open
    return connection


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)  # callers limit how long they wait
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _received(connection: socket.socket, count: int) -> Vector:
    content = np.empty(count, np.uint8)
    _receive(connection, content.data)
    return content


def _receive(connection: socket.socket, content: memoryview) -> None:
    """Fill the memory with what comes; raise ConnectionError if the other end is closed before."""
    while content:
        size = connection.recv_into(content)
        if not size:
            raise ConnectionError("another rank closed its connection")
        content = content[size:]
