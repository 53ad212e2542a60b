"""The ways to choose which of several loaders gives the next batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Protocol

import numpy as np

from ..utils.arguments import Count, Positive, checked, checked_value, one_of
from ..utils.text import counted, quoted, suggest

Update = tuple[str, ...]
"""The loaders that give a batch to one update of the parameters."""


def shuffled(counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
    """Return each loader as often as `counts` says, in random order."""
    return [(name,) for name in random.permutation(np.repeat(list(counts), list(counts.values()))).tolist()]


def spread(counts: Mapping[str, int]) -> list[Update]:
    """Return each loader as often as `counts` says, spread over the epoch as evenly as possible.

    >>> spread({"a": 4, "b": 2})
    [('a',), ('b',), ('a',), ('a',), ('b',), ('a',)]
    """
    turns = [
        ((turn + 0.5) / count, place, name)
        for place, (name, count) in enumerate(counts.items())
        for turn in range(count)
    ]
    return [(name,) for _, _, name in sorted(turns)]


def apportion(total: int, rates: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to `total`, in proportion to `rates`: the largest remainder method.

    None of them is 0 if `total` allows it: a number that would be 0 takes one from the largest.

    >>> apportion(135, [10, 30**0.5, 5**0.5])
    [76, 42, 17]
    """
    exact = total * np.asarray(rates, "float64") / np.sum(rates)
    counts = np.floor(exact).astype(int)
    for index in np.argsort(-(exact - counts), kind="stable")[: total - counts.sum()]:
        counts[index] += 1
    while not counts.all() and counts.max() > 1:
        counts[counts.argmin()] += 1
        counts[counts.argmax()] -= 1
    return [int(count) for count in counts]


class Sampling(Protocol):
    """Decides how many batches an epoch takes from each of several loaders, and in which order.

    The object never changes, and all its random numbers come from the `random` that it gets, so that a run
    resumes exactly.
    """

    joins: bool = False
    """Whether an update gets a batch of every loader."""

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield what is wrong for loaders of these names; nothing by default."""
        return iter(())

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many batches an epoch takes from each loader; `sizes` says how many the loaders have.

        A loader that must give more than it has starts again.
        """

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of each update of an epoch, which takes `counts` batches from each loader."""


class Proportional(Sampling):
    r"""Takes batches in proportion to a power of the loaders' sizes, in random order.

    .. math:: n_i \propto \min(e_i, K)^{1/T}

    where :math:`e_i` is the number of batches that a loader has. With the defaults an epoch takes each loader
    once. A higher temperature :math:`T` takes more from small loaders and less from large ones; in the limit,
    all give the same number. The limit :math:`K` keeps a huge loader from taking nearly all updates.

    Parameters
    ----------
    temperature : float
        :math:`T`; 1 is in proportion to the sizes.
    largest : int, optional
        :math:`K`, in batches: larger loaders count as this large. Default: no limit.
    batches : int, optional
        The number of batches in an epoch. Default: as many as all loaders have.

    Raises
    ------
    ValueError
        An argument is not valid.

    References
    ----------
    C. Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer. JMLR
    21, 2020, section 3.5.2.
    """

    @checked
    def __init__(
        self, temperature: Positive = 1.0, largest: Count | None = None, batches: Count | None = None
    ) -> None:
        self.temperature, self.largest, self.batches = temperature, largest, batches

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield what is wrong for loaders of these names."""
        if self.batches is not None and self.batches < len(loaders):
            yield (
                f"Proportional: batches is {self.batches}, fewer than the {counted(len(loaders), 'loader')}; "
                "give each of them at least one"
            )

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        limit = np.inf if self.largest is None else self.largest
        # divide by the largest first: with a small temperature, the power would be infinite otherwise
        rates = np.minimum(list(sizes.values()), limit) / min(max(sizes.values()), limit)
        total = sum(sizes.values()) if self.batches is None else self.batches
        return dict(zip(sizes, apportion(total, list(rates ** (1 / self.temperature)))))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, shuffled."""
        return shuffled(counts, random)


class Ratios(Sampling):
    """Takes batches in given ratios, spread over the epoch as evenly as possible.

    An epoch takes as many batches as all loaders have. ``Ratios(detection=2, segmentation=1)`` takes two
    batches from detection for each batch from segmentation.

    Parameters
    ----------
    **ratios : float
        The share of each loader, by its name; ``Ratios(**{"a/b": 2, "c": 1})`` for names that are not Python
        identifiers.

    Raises
    ------
    ValueError
        No ratio is given, or one is not a number above 0.
    """

    def __init__(self, **ratios: float) -> None:
        if not ratios:
            raise ValueError("Ratios: there is none; give one for each loader: Ratios(detection=2, depth=1)")
        problems = []
        self.ratios: dict[str, float] = {}
        for name, ratio in ratios.items():
            try:
                self.ratios[name] = checked_value(f"Ratios: {name}", ratio, Positive)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def messages(self, loaders: Collection[str]) -> Iterator[str]:
        """Yield which loaders have no ratio, and which ratios have no loader."""
        for name in self.ratios:
            if name not in loaders:
                near = suggest(name, [loader for loader in loaders if loader not in self.ratios])
                yield f'Ratios: there is no loader "{name}"{near}; loaders are {quoted(loaders)}'
        for loader in loaders:
            if loader not in self.ratios:
                yield f'Ratios: the loader "{loader}" has no ratio; give {loader}=1, or leave the loader out'

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        return dict(zip(sizes, apportion(sum(sizes.values()), [self.ratios[name] for name in sizes])))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, evenly spread."""
        return spread(counts)


class RoundRobin(Sampling):
    """Takes a batch from each loader in turn, until the longest loader has given all its batches.

    Shorter loaders start again. The order is that of the dict of loaders.
    """

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        return dict.fromkeys(sizes, max(sizes.values()))

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates, in turn."""
        return [(name,) for _ in range(max(counts.values())) for name in counts]


class Together(Sampling):
    """Takes a batch from each loader in every update.

    If every loader has all inputs of the net, their batches are joined to one large batch. Its samples lack
    the labels of the other loaders: declare these labels with ``LabelSpec(missing=)``. If each loader has
    inputs of its own, the batches are put side by side, and must have the same number of samples.

    Parameters
    ----------
    until : {"longest", "shortest"}
        Whether an epoch ends when the longest loader has given all its batches, while the others start again,
        or when the shortest has.

    Raises
    ------
    ValueError
        `until` is not valid.
    """

    joins = True

    @checked
    def __init__(self, until: Annotated[str, one_of("longest", "shortest")] = "longest") -> None:
        self.until = until

    def counts(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the number of batches in an epoch by loader."""
        updates = {"longest": max, "shortest": min}[self.until](sizes.values())
        return dict.fromkeys(sizes, updates)

    def updates(self, counts: Mapping[str, int], random: np.random.RandomState) -> list[Update]:
        """Return the loaders of an epoch's updates: always all of them."""
        return [tuple(counts)] * max(counts.values())
