"""Wait for MXNet's engine, so that parameters can be read."""

from contextlib import suppress

from .compat import mx


def wait_for_operators() -> None:
    """Wait until no operator uses parameters: a weight that is read meanwhile may be transposed.

    With oneDNN, MXNet changes the memory layout of a Conv2DTranspose's weight while it uses it, and then
    changes it back.
    """
    with suppress(mx.MXNetError):  # an operator's error is raised again when its result is read
        mx.nd.waitall()
