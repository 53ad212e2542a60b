"""Where the time of a training step goes: the measurements, and how to print and plot them."""

from __future__ import annotations

from .measure import profile
from .measurements import Operator, Part
from .profile import Profile

__all__ = ["Operator", "Part", "Profile", "profile"]
