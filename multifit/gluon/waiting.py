"""Wait for MXNet's engine, so that parameters can be read."""

from __future__ import annotations

from contextlib import suppress

from .compat import mx


def wait_for_operators() -> None:
    """Wait until no operator uses parameters: read while one does, a weight may be transposed.

    With oneDNN, MXNet lays the weight of a Conv2DTranspose out anew while it reads it, and back again.
    """
    with suppress(mx.MXNetError):  # an operator's error is raised again when its result is read
        mx.nd.waitall()
