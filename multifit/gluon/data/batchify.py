"""Make batches of what Gluon's default batchify functions do not take, or refuse it: dicts, odd dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from ...checks import describe
from ...errors import DataError, names
from ..compat import mx

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
    """Makes a dict of batches from samples that are dicts, and what `batchify` makes of any others."""

    batchify: Callable[[Sequence[Any]], Any]

    def __call__(self, samples: Sequence[Any]) -> Any:
        if not samples or not isinstance(samples[0], Mapping):
            return self._arrays(samples)
        keys = samples[0].keys()
        for sample in samples:
            if sample.keys() != keys:
                raise DataError(
                    f"samples of one batch have different keys: {names(keys)} and {names(sample.keys())}; "
                    "return the same keys for each sample"
                )
        return {key: self([sample[key] for sample in samples]) for key in keys}

    def _arrays(self, samples: Sequence[Any]) -> Any:
        try:
            return self.batchify(samples)
        except KeyError as error:  # MXNet looks for the dtype among its own
            sample = describe.structure(samples[0])
            message = (
                f"a sample is {sample}, and MXNet has no arrays of such a dtype; cast it in the data set"
            )
            raise DataError(message) from error
