"""A batch that knows which loader it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping


@dataclass(frozen=True)
class TaskBatch:
    """The batches of one update, as the loaders yielded them, by the loaders' names.

    Parameters
    ----------
    batches : mapping of str to object
        One batch, or, with ``Together``, one from each loader.
    """

    batches: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The loader's name; of several loaders, their names joined by " + "."""
        return " + ".join(self.batches)
