"""Connections of rank 0 with every other rank, which gather a few bytes faster than a library does."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Callable, NamedTuple

import numpy as np

from .header import Vector, pad

RANKS = 64  # above, the messages of rank 0 would cost more than a library's collective operation
SMALL = 4096  # bytes of a vector, above which a library is as fast
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
    """Gathers vectors of all ranks: each sends its own to rank 0, which sends all of them to each.

    Two messages, one after the other, take a fraction of the time of a library's collective operation. Large
    vectors, and those of many ranks, are gathered by the library, as all are where ranks cannot connect to
    rank 0. A rank that ends closes its connection, which ends the others' gather with OSError.

    Parameters
    ----------
    rank, size : int
        Number of this process, from 0, and the number of processes.
    host : str
        A name by which the others reach rank 0; that of rank 0 counts.
    gather : function
        The library's: takes the vector of this rank, and returns those of all.
    """

    def __init__(self, rank: int, size: int, host: str, gather: Gather) -> None:
        self._rank, self._size, self._host, self._library = rank, size, host, gather
        self._connections: list[socket.socket] | None = None  # before the first vector

    def all_gather(self, vector: Vector) -> list[Vector]:
        """Return the vectors of all ranks, uint8 of shape (n,); n is equal on all ranks."""
        if self._connections is None:
            few = 1 < self._size <= RANKS
            self._connections = _connected(self._rank, self._size, self._host, self._library) if few else []
        if not self._connections or vector.nbytes > SMALL:
            return self._library(vector)
        try:
            gathered = _collect if self._rank == 0 else _send
            rows = gathered(self._connections, vector, self._size)
        except OSError:
            self.close()  # so that the others know
            raise
        return list(rows.reshape(self._size, vector.size))

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections or ():
            connection.close()


def _collect(connections: Sequence[socket.socket], vector: Vector, size: int) -> Vector:
    """Return the vectors of all ranks, and send them to all."""
    received = [_received(connection, vector.nbytes) for connection in connections]
    rows: Vector = np.concatenate([vector, *received])
    for connection in connections:
        connection.sendall(rows.data)
    return rows


def _send(connections: Sequence[socket.socket], vector: Vector, size: int) -> Vector:
    """Send a vector to rank 0, and return what it sends: the vectors of all ranks."""
    connections[0].sendall(vector.data)
    return _received(connections[0], vector.nbytes * size)


def _connected(rank: int, size: int, host: str, gather: Gather) -> list[socket.socket]:
    """Return rank 0's connections in the order of ranks, or another rank's one; [] if one cannot connect."""
    listener, offer = _listen(host, size) if rank == 0 else (None, b"")
    offered = gather(pad(offer, OFFER))[0].tobytes().rstrip(b"\0")
    connections: list[socket.socket] = []
    with suppress(OSError, ValueError):  # a firewall, a name that is none here, no offer
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
    except (OSError, UnicodeError):  # a name that is none
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
                raise ConnectionError("a stranger has connected")
            connections[int.from_bytes(number.tobytes(), "little")] = _ready(connection)
        opened.pop_all()  # they stay open
    return [connections[rank] for rank in sorted(connections)]


def _connect(offer: Offer, rank: int) -> socket.socket:
    connection = socket.create_connection((offer.host, offer.port), CONNECTING)
    connection.sendall(offer.token.encode() + rank.to_bytes(NUMBER, "little"))
    return _ready(connection)


def _ready(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)  # who waits knows for how long
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _received(connection: socket.socket, count: int) -> Vector:
    """Return as many bytes as that; raise ConnectionError if the other end is closed before."""
    content = np.empty(count, np.uint8)
    rest = content.data
    while rest:
        size = connection.recv_into(rest)
        if not size:
            raise ConnectionError("another rank closed its connection")
        rest = rest[size:]
    return content
