"""Where a training step's time goes: the figures, and what is made of them to read and to look at."""

from __future__ import annotations

from .parts import Operator, Part
from .profile import Profile

__all__ = ["Operator", "Part", "Profile"]
