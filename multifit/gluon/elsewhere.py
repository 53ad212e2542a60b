"""What another engine holds for this one."""

from __future__ import annotations

from typing import Protocol


class Elsewhere(Protocol):
    """Values that another engine holds on its device, until somebody reads them."""

    def fetch(self) -> None:
        """Hand them over, and hold nothing; this waits for the device."""

    def clear(self) -> None:
        """Discard them."""
