"""Make batches of samples that are dicts, and raise a DataError for samples of which no batch can be made.

Gluon's default batchify functions take no dicts, and fail on other samples with errors that do not explain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from ...checks import describe
from ...errors import DataError, quoted
from ..compat import mx
from .array_batching import DTYPES

DEFAULTS = (
    mx.gluon.data.dataloader.default_batchify_fn,
    mx.gluon.data.dataloader.default_mp_batchify_fn,
)


def batchify_of(data: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a DataLoader's batchify function; the default ones take dicts too."""
    function = data._batchify_fn
    return _ByKey(function) if function in DEFAULTS else function


@dataclass(frozen=True)
class _ByKey:
    """Makes a dict of batches from samples that are dicts, a list from tuples; else calls `batchify`."""

    batchify: Callable[[Sequence[Any]], Any]

    def __call__(self, samples: Sequence[Any]) -> Any:
        try:
            return self._batch(samples)
        except DataError:
            raise
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError, mx.MXNetError) as error:
            raise DataError(_problem(samples)) from error

    def _batch(self, samples: Sequence[Any]) -> Any:
        first = samples[0]
        if isinstance(first, tuple):
            if len(set(map(len, samples))) > 1:
                raise ValueError("lengths differ")  # zip would leave the rest out
            return [self._batch(column) for column in zip(*samples)]
        if not isinstance(first, Mapping):
            return self._arrays(samples)
        keys = first.keys()
        for sample in samples:
            if sample.keys() != keys:
                raise DataError(
                    f"samples of one batch have different keys: {quoted(keys)} and {quoted(sample.keys())}; "
                    "return the same keys for each sample"
                )
        return {key: self._batch([sample[key] for sample in samples]) for key in keys}

    def _arrays(self, samples: Sequence[Any]) -> Any:
        is_array = isinstance(samples[0], mx.nd.NDArray)
        if is_array and len({getattr(sample, "shape", None) for sample in samples}) > 1:
            raise ValueError("shapes differ")  # MXNet would fail much later, or never, if sizes are equal
        return self.batchify(samples)


def _problem(samples: Sequence[Any]) -> str:
    """Return why no batch can be made of these samples."""
    found = list(dict.fromkeys(map(describe.structure, samples)))
    if len(found) == 1:
        return (
            f"a sample is {found[0]}, which MXNet cannot batch; valid are numbers and arrays of "
            f"{', '.join(sorted(DTYPES))}, in tuples or dicts: cast others in the data set"
        )
    in_place = ", the value of missing= in place of None" if any("None" in text for text in found) else ""
    return (
        f"samples of one batch differ: {found[0]} and {found[1]}; give them equal shapes and "
        f"dtypes{in_place}, or the DataLoader a batchify_fn= that pads them"
    )
