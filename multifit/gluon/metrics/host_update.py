"""Update a metric object on the host, batch by batch."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from ...checks import describe
from ...errors import SpecError
from ...signatures import arity_problem, positional
from ...spec.names import OUTPUTS, Ref
from ...spec.terms import MetricTerm
from ..compat import mx
from ..user_code import user_code
from .accuracy import UNCLEAR, read_classes
from .catalogue import READING, parts_of, updates_as, value_axis
from .function_metric import is_function
from .joining import Joining
from .present import present_arrays


class HostUpdate:
    """Calls the `update` of a metric, with the arguments that its kind takes; most wait for the engine.

    `takes_preds` says whether that has the stock signature ``(labels, preds)``.
    """

    def __init__(self, metric: Any) -> None:
        self.metric, self.takes_preds = metric, _takes_preds(metric)
        self._is_stock = _is_stock(metric)

    def __call__(
        self,
        term: MetricTerm,
        arrays: Sequence[Mapping[Ref, Any]],
        parts: Sequence[Mapping[str, Any]],
        joining: Joining,
    ) -> bool:
        """Update the metric with a batch; return whether it had samples with all labels that it needs.

        `arrays` are the outputs and slots, `parts` what the losses returned, both per device with samples.
        `joining` joins the arrays of all devices.
        """
        if not arrays:
            return False
        by_value = False
        if term.present:
            axis = value_axis(term, self.metric, arrays[0])
            by_value = axis is not None
            chosen = [present_arrays(term, axis, *device) for device in zip(arrays, parts)]
            with_samples = [device for device in chosen if device is not None]
            if not with_samples:
                return False
            arrays, parts = zip(*with_samples)
            joining = Joining([len(device[term.present[0]]) for device in arrays], 0)
        columns = [[device[ref] for device in arrays if ref in device] for ref in term.args]
        outputs = [c for ref, c in zip(term.args, columns) if ref.space == OUTPUTS]
        outputs += [[device[name] for device in parts] for name in term.losses]
        labels = [c for ref, c in zip(term.args, columns) if ref.space != OUTPUTS]
        named = ((str(ref), column[0]) for ref, column in zip(term.args, columns) if column)
        with user_code(lambda: f"{term.where}.update", *named):
            if term.spec.transform is not None:
                losses = outputs[len(term.outputs) :]
                self._update_transformed(term, columns + losses if term.losses else columns, joining)
            elif not self.takes_preds:
                self.metric.update(*(columns if term.spec.arguments is not None else [*outputs, *labels]))
            elif is_function(self.metric):
                self.metric.update(*([joining(term.where, c) for c in each] for each in (labels, outputs)))
            elif self._is_stock or by_value:
                update_metric(
                    term.where,
                    self.metric,
                    [a for column in labels for a in column],
                    [a for c in outputs for a in c],
                )
            else:
                for values in joining.whole_or_each([*labels, *outputs]):
                    update_metric(
                        term.where, self.metric, list(values[: len(labels)]), list(values[len(labels) :])
                    )
        return True

    def _update_transformed(
        self, term: MetricTerm, columns: Sequence[Sequence[Any]], joining: Joining
    ) -> None:
        transform = term.spec.transform
        per_device = [_as_list(transform(*arrays)) for arrays in zip(*columns)]  # type: ignore[misc]
        returned = [f"value {number}" for number, _ in enumerate(per_device[0], 1)]
        fix = "let transform return its arguments, in their order"
        problem = arity_problem(f"{term.where}.update", self.metric.update, returned, fix=fix)
        if problem:
            raise SpecError(problem)
        arguments = [list(values) for values in zip(*per_device)]
        if is_function(self.metric):
            pieces = [zip(*map(_as_list, column)) for column in arguments]
            self.metric.update(*([joining(term.where, c) for c in each] for each in pieces))
        elif any(_is_list_of_arrays(value) for values in per_device for value in values):
            for values in per_device:  # such lists are whole arguments, as gluoncv's RPNAccMetric takes them
                update_metric(term.where, self.metric, *values)
        elif self.takes_preds and not self._is_stock:
            for values in joining.whole_or_each(arguments):
                update_metric(term.where, self.metric, *([value] for value in values))
        else:
            update_metric(term.where, self.metric, *arguments)


def update_metric(where: str, metric: Any, labels: Any, *arguments: Any) -> None:
    """Call the `update` of a metric; labels of the outputs' shape are read by :func:`read_classes`.

    Raises SpecError if it is not clear what these hold.
    """
    for part in parts_of(metric):
        read = labels
        if updates_as(part, *READING):
            axis = getattr(part, "axis", 1)
            read = [read_classes(label, output, axis) for label, output in zip(labels, *arguments)]
            if any(label is None for label in read):
                raise SpecError(f"{where}: for {describe.arrays(labels)}, {UNCLEAR}")
        part.update(read, *arguments)


def _as_list(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else [values]


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(hasattr(item, "shape") for item in value)


def _takes_preds(metric: Any) -> bool:
    """Whether `update` has the stock signature ``(labels, preds)``."""
    signature = positional(metric.update)
    return signature is None or (len(signature[0]) > 1 and signature[0][1] == "preds")


def _is_stock(metric: Any) -> bool:
    """Whether a metric is MXNet's own, which takes a list of the arrays of all devices."""
    if type(metric) is mx.metric.CompositeEvalMetric:
        return all(map(_is_stock, metric.metrics))
    return type(metric).__module__ == mx.metric.__name__
