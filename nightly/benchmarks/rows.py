"""A row of measured values, by contender and round."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import Mapping, NamedTuple, Sequence

__all__ = ["OURS", "Row", "Spread", "spread"]

OURS = "multifit"


class Spread(NamedTuple):
    """The median and quartiles of values."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} … {self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One case of a table.

    Attributes
    ----------
    table, case : str
        Their names.
    unit : str
        The unit of the values, such as "ms per step".
    values : mapping of str to sequence of float
        By contender; values with the same index were measured right after each other.
    """

    table: str
    case: str
    unit: str
    values: Mapping[str, Sequence[float]]

    @classmethod
    def of_seconds(
        cls, table: str, case: str, times: Mapping[str, Sequence[float]], steps: int | None = None
    ) -> Row:
        """Return a row of milliseconds; per step if the number of steps is given."""
        unit = "ms" if steps is None else "ms per step"
        scale = 1000 / (steps or 1)
        return cls(
            table, case, unit, {name: [scale * time for time in seconds] for name, seconds in times.items()}
        )

    def ratios(self) -> dict[str, list[float]]:
        """Return multifit's values divided by each other contender's, pair by pair."""
        ours = self.values.get(OURS, ())
        return {
            f"/ {name}": [our / other for our, other in zip(ours, values)]
            for name, values in self.values.items()
            if not name.startswith(OURS) and ours
        }

    def figures(self) -> dict[str, Spread]:
        """Return the spread of every contender's values and of every ratio."""
        return {name: spread(values) for name, values in {**self.values, **self.ratios()}.items()}


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles of at least one value."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Spread(median(values), low, high)
