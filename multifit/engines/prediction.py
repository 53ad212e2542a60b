"""Predict, batch by batch, and read the shapes of batches to export with: what all engines do alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ..spec import TaskSpec
from ..utils.errors import Problem, SpecError, raise_problems, user_code
from ..utils.protocols import Numbers
from ..utils.stages import EVALUATE, TRAIN
from ..utils.text import quoted, shown, suggest
from .batch import Shards
from .scikit import softmax

Piece = tuple[dict[str, Any], int]
"""One device's outputs, as NumPy arrays by name, and its number of samples."""

Activation = Callable[[Numbers], Any]
ClassAxis = Callable[[Any], "int | None"]
"""Returns the axis of the classes in what a softmax loss takes; None for other losses."""

Signature = Mapping[str, Any]
"""The shape and the dtype of each slot of a batch; None for a slot that is None."""

NAMES = ("softmax", "sigmoid")
MAX_BATCHES = 31  # at most as many batches of a loader are read for their shapes


def batches_of(session: Any, data: Any) -> Any:
    """Iterate over the batches of `data`: a tuple, a mapping or an array is one, a list or a loader many."""
    is_batch = (
        isinstance(data, (tuple, Mapping, Shards)) or hasattr(data, "shape") or not hasattr(data, "__iter__")
    )
    return session.readers[EVALUATE].peek_first([data] if is_batch else data, "data")[1]


def input_signatures(
    session: Any,
    data: Any,
    run: Callable[[Any], object],
    casts_of: Callable[[Any], Mapping[str, Any]],
) -> Iterator[list[Signature]]:
    """Yield signatures of the inputs of similar batches; see :meth:`Engine.input_signatures`.

    ``run(raw)`` runs the net on a batch, so that parameters get their shapes. ``casts_of(stage)`` are the
    dtypes to which inputs are cast: what is exported is the net alone.
    """
    inputs = session.spec.evaluation.inputs
    if data is None:  # after a fit without validation data, there are only those of training
        sources = [session.signatures[name] for name in (EVALUATE, TRAIN)]
    else:
        batches, splitter = batches_of(session, data), session.splitter(EVALUATE, labels=False)
        run(first := next(batches))
        split = [splitter.split(raw).slots for raw in (first, *islice(batches, MAX_BATCHES - 1))]
        one_device = [slots[0] if isinstance(slots, list) else slots for slots in split]
        known_as = splitter.known_as
        sources = [
            [
                {n: None if a is None else (tuple(a.shape), known_as(a.dtype)) for n, a in slots.items()}
                for slots in one_device
            ]
        ]
    for source in sources:
        fitting = [each for each in source if set(inputs) <= set(each)]
        if fitting:
            casts = {n: dtype for stage in session.stages.values() for n, dtype in casts_of(stage).items()}
            absent = [fitting[-1][name] is None for name in inputs]
            yield [
                {n: each[n] and (each[n][0], casts.get(n, each[n][1])) for n in inputs}
                for each in fitting
                if [each[name] is None for name in inputs] == absent
            ]


def predict(
    session: Any,
    data: Any,
    gather: bool,
    activation: Any,
    write: Callable[[str, Numbers, int], object] | None,
    run: Callable[[Any], list[Piece]],
    class_axis: ClassAxis,
) -> dict[str, Any]:
    """Return every output by name, concatenated over batches; a list of arrays where that is impossible.

    With several ranks, the outputs are those of all ranks, unless ``gather=False``. `activation` is applied
    to them. With `write`, nothing is returned: it is called with the name, the array and the number of
    samples of each batch's outputs. ``run(raw)`` computes a batch's outputs: a piece for each device with
    samples.
    """
    activations = activations_of(session.spec, activation, class_axis)
    carried = session.stages[EVALUATE].carried
    if carried is not None:
        carried.reset()
    batches = []
    for raw in batches_of(session, data):
        pieces = run(raw)
        for outputs, size in pieces:
            for name, activate in activations.items():
                with user_code(partial(str, f'activation of output "{name}"')):
                    outputs[name] = np.asarray(activate(outputs[name]))
            if write is not None:
                for name, array in outputs.items():
                    write(name, array, size)
        if write is None:
            batches.append(pieces)
    if gather and not session.world.alone:  # for each batch, one piece per device, in the order of the ranks
        gathered = zip(*session.world.gather(batches))
        batches = [[piece for of_rank in ranks for piece in of_rank] for ranks in gathered]
    pieces = [piece for batch in batches for piece in batch]
    names = pieces[0][0] if pieces else {}
    sizes, axis = [size for _, size in pieces], session.batch_axis
    return {name: joined([outputs[name] for outputs, _ in pieces], sizes, axis) for name in names}


def joined(pieces: list[Numbers], sizes: list[int], batch_axis: int = 0) -> Numbers | list[Numbers]:
    """Concatenate an output's pieces, one per device and batch, over the batch axis or else the first axis.

    `sizes` are the pieces' numbers of samples. Several pieces are returned as a list if their other axes
    differ, or if their shapes do not show which axis holds the samples, or whether one does.
    """
    if len(pieces) == 1 and any(length == sizes[0] for length in pieces[0].shape[: batch_axis + 1]):
        return pieces[0]
    axis = sample_axis(pieces, sizes, batch_axis)
    return pieces if axis is None else np.concatenate(pieces, axis)


def sample_axis(pieces: Sequence[Any], sizes: Sequence[int], batch_axis: int) -> int | None:
    """Return the axis over which arrays can be joined: the batch axis, or the first one.

    `sizes` are the arrays' numbers of samples. Returns None if their other axes differ, or if their shapes do
    not show which axis holds the samples.
    """
    fitting = [
        axis
        for axis in sorted({0, batch_axis})
        if all(p.ndim > axis and p.shape[axis] == size for p, size in zip(pieces, sizes))
        and len({p.shape[:axis] + p.shape[axis + 1 :] for p in pieces}) == 1
    ]
    return fitting[0] if len(fitting) == 1 else None


# ----------------------------------------------------------------------------------------- activations


def activations_of(spec: TaskSpec, declared: Any, class_axis: ClassAxis) -> dict[str, Activation]:
    """Return the activation of each output that has one.

    `declared` is a name, a function or None for the only output, or a dict of these by output. Raises
    SpecError for an unknown output or activation, or if there are several outputs and no dict.
    """
    outputs = spec.evaluation.output_names
    if declared is not None and not isinstance(declared, Mapping):
        if len(outputs) != 1:
            example = f"activation={{{outputs[0]!r}: {declared!r}}}" if outputs else "no activation"
            raise SpecError(f"activation is {shown(declared)} for {len(outputs)} outputs; give {example}")
        declared = {outputs[0]: declared}
    problems: list[str] = []
    activations: dict[str, Activation] = {}
    for name, activation in (declared or {}).items():
        if name not in outputs:
            valid = f"{suggest(name, outputs)}; outputs are {quoted(outputs)}"
            problems.append(f"activation: there is no output {shown(name)}{valid}")
        elif activation == "softmax":
            activations[name] = partial(_softmax, name=name, axis=_axis_of(spec, name, class_axis))
        elif activation == "sigmoid":
            activations[name] = _sigmoid
        elif callable(activation):
            activations[name] = activation
        elif activation is not None:
            valid = f'{suggest(activation, NAMES)}; valid is "softmax", "sigmoid" or a function of an array'
            problems.append(f'activation of output "{name}" is {shown(activation)}{valid}')
    raise_problems(Problem("spec", message) for message in problems)
    return activations


def _axis_of(spec: TaskSpec, output: str, class_axis: ClassAxis) -> int:
    """Return the axis of the classes: that of a softmax loss of the output, or else the last one."""
    terms = [*spec.evaluation.terms, *spec.terms]
    axes = [class_axis(term.spec.fn) for term in terms if output in {ref.name for ref in term.outputs}]
    return next((axis for axis in axes if axis is not None), -1)


def _softmax(array: Numbers, name: str, axis: int) -> Any:
    if array.ndim < 2 or not -array.ndim <= axis < array.ndim or array.shape[axis] == 1:
        raise SpecError(
            f'activation of output "{name}": a softmax along axis {axis} of {array.shape} is 1 everywhere '
            'or impossible; for a single score, give "sigmoid"'
        )
    return softmax(array, axis)


def _sigmoid(array: Numbers) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * array))  # cannot overflow
