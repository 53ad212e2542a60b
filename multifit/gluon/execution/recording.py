"""Turn a net that takes no symbols into a symbol, by recording what it does with arrays of certain shapes."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from ..compat import mx
from .hollow_arrays import hollow
from .recordable import blocks_of, plain_attributes
from .recorder import Recorder, refusal

AGAIN = "leave out what changes from call to call, or compute it with operators of mx.nd"


class Recording(NamedTuple):
    """The symbols of a net's outputs, and the values of its variables that are no inputs or parameters."""

    outputs: dict[str, Any]
    constants: dict[str, np.ndarray]


def record(
    net: Any, call: Callable[..., Mapping[str, Any]], symbols: Sequence[Any], arrays: Sequence[Any]
) -> Recording:
    """Record `call`, a function that calls the net and returns its outputs.

    `arrays` are its arguments, and `symbols` stand for them; an argument that is None has no symbol. The net
    is called twice, with arrays of the same shapes and dtypes, and must call the same operators both times.
    Raises SpecError if it does not, and for anything that :class:`Recorder` refuses.
    """
    blocks = blocks_of(net)
    attributes = plain_attributes(blocks)
    stand_ins = [each if each is None else hollow(each.shape, each.dtype) for each in arrays]
    with _run_by_python(blocks.values()):
        first = _record_once(blocks, call, symbols, stand_ins)
        changed = plain_attributes(blocks).items() ^ attributes.items()
        if changed:
            names = ", ".join(sorted({name for name, _ in changed}))
            raise refusal(f"its forward pass changes {names}", "let a handler do that")
        if not _equal(first, _record_once(blocks, call, symbols, stand_ins)):
            raise refusal("it did something else when it was called again", AGAIN)
    return first


def _record_once(
    blocks: dict[str, Any],
    call: Callable[..., Mapping[str, Any]],
    symbols: Sequence[Any],
    arrays: Sequence[Any],
) -> Recording:
    parameters = [p for p in blocks[""].collect_params().values() if p._data is not None]
    known = [(p._data[0], copy(p.var())) for p in parameters]  # copied: a variable counts what updates it
    known += [pair for pair in zip(arrays, symbols) if pair[0] is not None]
    recorder = Recorder(known, blocks)
    with recorder.active():
        outputs = call(*arrays)
        recorded = {name: recorder.symbol(array) for name, array in outputs.items()}
    return Recording(recorded, recorder.constants)


@contextmanager
def _run_by_python(blocks: Iterable[Any]) -> Iterator[None]:
    """Run hybridized blocks as if they were not hybridized, and keep their graphs."""
    active = [block for block in blocks if getattr(block, "_active", False)]
    for block in active:
        block._active = False
    try:
        yield
    finally:
        for block in active:
            block._active = True


def _equal(one: Recording, other: Recording) -> bool:
    graphs = [mx.sym.Group(list(each.outputs.values())).tojson() for each in (one, other)]
    pairs = zip(one.constants.values(), other.constants.values())
    return graphs[0] == graphs[1] and all(np.array_equal(*pair) for pair in pairs)
