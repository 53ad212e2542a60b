"""The nets that are measured, one family per file, with the loops that people write for them."""

from .balanced import BALANCED, Balanced
from .detection import SSD
from .heads import HEADS, Heads
from .large import LARGE
from .single import SINGLES, Single
from .subject import Epoch, Subject
from .translation import NMT

__all__ = [
    "BALANCED", "HEADS", "LARGE", "NMT", "SINGLES", "SSD", "Balanced", "Epoch", "Heads", "Single", "Subject",
]  # fmt: skip
