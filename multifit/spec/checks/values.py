"""Checks of values: labels that a loss would truncate or clip, NaN, sizes, and what is only doubtful."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ...utils.errors import Problem
from ...utils.protocols import Numbers, Shape
from ...utils.text import counted
from ..terms import SINGULAR, Ref, Term
from . import describe

MOST_SAMPLES = 10  # that a message lists
LENGTH, WEIGHT, RESHAPED = "length", "weight", "reshaped weight"  # how a mask is applied


def label_problems(
    where: str, name: str, labels: np.ndarray[Any, Any], classes: int, clips: bool = True
) -> list[Problem]:
    """Check that the labels of a batch, of any shape, are class indices ``0 … classes - 1``.

    `where` says what takes them, and `clips` whether it would take others for the nearest class.
    """
    taken = "would be taken for class {}" if clips else "is none of the classes"
    label = f'the label "{name}" {describe.array(labels)}'
    fractions = labels[~np.isfinite(labels) | (labels != np.floor(labels))]
    valid = f"classes are 0 … {classes - 1}"
    if fractions.size:
        found = (
            f"{fractions.flat[0]:g}, which is not a class index{' and would be truncated' * clips}; {valid}"
        )
        fix = "give whole numbers, or use a loss for real values"
        fix += " (sparse_label=False takes probabilities)" if clips else " or for probabilities"
        if np.isnan(fractions.flat[0]):
            fix = f'if it means "no label", declare LabelSpec("{name}", missing="nan"); otherwise {fix}'
    elif labels.size and labels.min() < 0:
        found = f"{labels.min():g}, which {taken.format(0)}; {valid}"
        fix = f"if it means {_ignored(name, f'{labels.min():g}')}"
    elif labels.size and labels.max() >= classes:
        found = f"{labels.max():g}, which {taken.format(classes - 1)}; {valid}"
        fix = "give the output as many classes as there are, or fix the labels"
    else:
        return []
    return [Problem("spec", f"{where}: {label} holds {found}: {fix}")]


def not_finite_problem(where: str, wrong: np.ndarray[Any, Any], samples: Sequence[int]) -> Problem:
    """Return the problem of a first batch's numbers, `wrong`, in these `samples`, that are NaN or infinite.

    `where` names the slot.
    """
    kinds = ["NaN"] * bool(np.isnan(wrong).any()) + ["infinity"] * bool(np.isinf(wrong).any())
    listed = ", ".join(map(str, samples[:MOST_SAMPLES])) + ", …" * (len(samples) > MOST_SAMPLES)
    held = f"{counted(wrong.size, 'time')}, in sample{'s' * (len(samples) > 1)} {listed} (from 0)"
    return Problem("data", f"{where} holds {' and '.join(kinds)} {held}{_fix(where)}")


def counted_labels_problem(
    where: str,
    name: str,
    classes: int | None,
    stage: str,
    count: int,
    taken: str,
) -> Problem:
    """Return the problem of wrong values in later batches.

    `count` is the number of wrong labels in all batches of a `stage`, "training" or "evaluation", that the
    figures cover; without `classes`, of rows along the first axis of the slot, `where`, with numbers that are
    not finite. `taken` says what became of the labels. The message names no epoch, because a training loop of
    the user's own has none.
    """
    if classes is None:
        rows = counted(count, "row")
        return Problem("data", f"{where} held NaN or infinity in {rows}, in {stage}{_fix(where)}")
    held = f'{where}: in {stage}, the label "{name}" held {counted(count, "value")} not among the classes'
    fix = f"fix the labels; if a value means {_ignored(name)}"
    return Problem("data", f"{held} 0 … {classes - 1}{taken}: {fix}")


def partly_missing_problem(where: str, name: str, stage: str, count: int) -> Problem:
    """Return the problem of samples that have only a part of a label, for a loss or a metric of whole ones.

    `count` is the number of values that are missing in such samples: in all batches of a `stage`, "training"
    or "evaluation", or in one batch, for which `stage` is "".
    """
    values = f'{counted(count, "value")} of "{name}" {"is" if count == 1 else "are"} missing'
    when = f" (in {stage})" if stage else ""
    fix = (
        "return a loss for each value, in the label's shape, or use one that does, as L2Loss or MSELoss"
        if where.startswith("losses")
        else 'use a metric that compares value by value, such as "binary_accuracy" or "mae"'
    )
    mask = f'LabelSpec("{name}", missing="known"), labels=["{name}", "known"]'
    return Problem(
        "data",
        f"{where}: {values} in samples that have others{when}, and it takes whole samples; {fix}; or let it "
        f"take the mask too and leave them out: {mask}",
    )


def _fix(where: str) -> str:
    """Return the way out for the slot named `where`, such as ``inputs["x"]``."""
    kind, _, name = where.rstrip("]").partition("[")
    special = f'if NaN means "no label", declare LabelSpec({name}, missing="nan")'
    if kind == "inputs":
        special = "if infinity is a mask, give a large finite number, such as -1e9"
    skip = "in training, SkipNonFinite() skips such batches"
    return f"; mend the data, or leave the samples out; {special}; {skip}"


def _ignored(name: str, value: str = "...") -> str:
    missing = f'declare LabelSpec("{name}", missing={value})'
    return f'"no label", {missing}, or use a loss that ignores it, and ignore={value}'


def elementwise_problem(
    where: str,
    output: tuple[str, describe.ArrayLike],
    label: tuple[str, describe.ArrayLike],
    fix: str = "fix the net's last layer or the label",
) -> str | None:
    """Return what is wrong with comparing an output with a label, each (name, array), or None.

    `fix` is the way out if their sizes differ.

    Gluon reshapes the label like the output, so ``(8,)`` matches ``(8, 1)``. Another size fails deep inside,
    and a size that matches only with samples mixed up, such as ``(4, 1)`` and ``(1, 4)``, never fails.
    """
    (output_name, predicted), (label_name, true) = output, label
    sizes = (
        f'output "{output_name}" {describe.array(predicted)} and label "{label_name}" {describe.array(true)}'
    )
    if prod(predicted.shape) != prod(true.shape):
        return f"{where}: {sizes} differ in size; they are compared element by element: {fix}"
    if predicted.shape[:1] != true.shape[:1]:
        harm = "which mixes samples: put the batch axis first in both"
        return f"{where}: {sizes} match only by reshaping across the batch axis, {harm}"
    return None


def axis_problem(where: str, taker: object, name: str, output: describe.ArrayLike, axis: int) -> str | None:
    """Return what is wrong with the axis along which a loss or a metric, `taker`, has classes, or None."""
    dimensions = len(output.shape)
    if -dimensions <= axis < dimensions:
        return None
    found = f'the output "{name}" {describe.array(output)} has no axis {axis}'
    valid = f"valid are {-dimensions} … {dimensions - 1}" if dimensions else "it has none"
    return f"{where}: {found}, where {type(taker).__name__} looks for the classes; {valid}"


def mask_kind(mask: Any, label: Any) -> str:
    """Return how another argument of a loss hides values of its label; "" if it does not."""
    if len(label.shape) > 1 and mask.shape == label.shape[:1]:
        return LENGTH
    if len(mask.shape) == len(label.shape):
        return WEIGHT if all(one in (1, other) for one, other in zip(mask.shape, label.shape)) else ""
    return RESHAPED if mask.size == label.size else ""


Doubts = Callable[[Any, Any], Iterator[str]]
"""Yields what is doubtful of an array that a loss takes: ``doubts(loss, array)``."""


def loss_doubts(
    terms: Iterable[Term], arrays: Mapping[Ref, Any], of_output: Doubts, of_label: Doubts
) -> Iterator[str]:
    """Yield a warning for each output or label whose values a loss was hardly meant for.

    Such a loss trains, but slowly or on nonsense: even if the net is always right, the loss stays far above
    0, or it has no lower bound. Labels that a mask or a weight may hide are left out.
    """
    for term in terms:
        taken = [ref for ref in term.args[:2] if arrays.get(ref) is not None and prod(arrays[ref].shape)]
        if len(taken) == 2:
            hides = term.present or len(term.args) > 2 or term.weights is not None
            for ref, doubts in zip(taken, (of_output,) if hides else (of_output, of_label)):
                where = f'{term.where}: the {SINGULAR[ref.space]} "{ref.name}"'
                yield from (f"{where} {message}" for message in doubts(term.spec.fn, arrays[ref]))


def softmax_doubts(loss: str, scores: Numbers, axis: int) -> Iterator[str]:
    """Doubt scores that look like a softmax along an axis, which the loss applies itself."""
    if scores.shape[axis] > 1 and scores.min() >= 0 and np.allclose(scores.sum(axis), 1, atol=1e-2):
        yield (
            f"adds up to 1 over its classes, as after a softmax, and {loss} applies softmax itself; "
            "let the net return the scores before its softmax"
        )


def share_doubts(loss: str, labels: Numbers, way_out: str) -> Iterator[str]:
    """Doubt labels below 0 or above 1."""
    if (value := no_share(labels)) is not None:
        yield f"holds {value:g}, but {loss} takes 0 … 1, and has no lower bound for others; {way_out}"


def no_share(values: Numbers) -> float | None:
    """Return a value that is below 0 or above 1; None if there is none."""
    wrong = values[(values < 0) | (values > 1)]
    return float(wrong[0]) if wrong.size else None


def are_logarithms(values: Numbers, axis: int) -> bool:
    """Whether values are the logarithms of probabilities along an axis."""
    with np.errstate(over="ignore"):  # overflow gives infinity, which is refused as well
        return bool(np.allclose(np.exp(values).sum(axis), 1, atol=0.05))  # bfloat16 is not more precise


CHANNELS_FIRST = (
    "images are (N, C, H, W): give the dataset the ToTensor() of gluon.data.vision.transforms or of "
    "torchvision.transforms, or move the last axis to the second place, with transpose((0, 3, 1, 2))"
)


def has_channels_last(shape: Shape) -> bool:
    """Whether a batch of this shape looks like square images (N, H, W, C) of 1, 3 or 4 channels."""
    return len(shape) == 4 and shape[1] == shape[2] > 4 and shape[3] in (1, 3, 4)


def channels_hint(arguments: Iterable[tuple[str, Any]]) -> str:
    """Return the way out after an error about channels; "" if no argument looks like images."""
    shapes = (tuple(getattr(value, "shape", ())) for _, value in arguments)
    return f"; {CHANNELS_FIRST}" if any(map(has_channels_last, shapes)) else ""


def channel_doubts(images: Mapping[str, Any], channels: Collection[int]) -> Iterator[str]:
    """Yield a warning for each input whose rows a convolution seems to have taken for channels.

    A convolution that learns its size from the first batch takes any number of `channels`. There is no
    warning if a convolution has the size of the last axis: then the net moves the channels itself.
    """
    for name, image in images.items():
        shape = tuple(getattr(image, "shape", ()))
        if has_channels_last(shape) and shape[1] in channels and shape[3] not in channels:
            yield (
                f'the input "{name}" {describe.array(image)} looks like images with the channels last, and a '
                f"convolution takes the {shape[1]} rows for channels; {CHANNELS_FIRST}"
            )
