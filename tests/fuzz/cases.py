"""A case: something to do with multifit, and what is changed in arguments that are right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multifit import LabelSpec, LossSpec, MetricSpec, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import gluon

from .data import ARRAYS, BATCHES, LOADERS, SLOTS, arrays
from .values import make

METHODS = ("declare", "check", "fit", "evaluate", "predict")


@dataclass(frozen=True)
class Case:
    """What to do, and the values that replace right ones, by place.

    `what` is one of `METHODS`. Places are ``task.outputs``, ``loss.weight``, ``batch.1.y`` and so on.
    """

    what: str
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def breaks_rules(self) -> bool:
        """Whether an object breaks the rules of Python or MXNet: its name begins with ``!``."""
        return "'!" in repr(self.changes)


RIGHT: dict[str, Callable[[], dict[str, Any]]] = {
    "task": lambda: {"inputs": ["x"], "outputs": ["p", "q"]},
    "loss": lambda: {"fn": gluon.loss.SoftmaxCrossEntropyLoss(), "outputs": "p", "labels": "y"},
    "metric": lambda: {"metric": mx.metric.Accuracy(), "outputs": "p", "labels": "y"},
    "label": lambda: {"name": "y"},
    "trainer": lambda: {"params": ".*", "optimizer": "sgd", "optimizer_params": {"learning_rate": 0.1}},
    "estimator": dict,
    "fit": lambda: {"batches": 2},
    "evaluate": dict,
}


class Setup:
    """The arguments of a case, by section."""

    def __init__(self, changes: tuple[tuple[str, Any], ...]) -> None:
        self.fields = {section: right() for section, right in RIGHT.items()}
        self.net_kind: Any = "plain"
        self.loader: Any = "list"
        self.values = [arrays(), arrays(), arrays()]
        self.forms: dict[int, str] = {}
        for place, value in changes:
            section, _, rest = place.partition(".")
            if section == "batch":
                self._change_batch(rest, value)
            elif section in ("net", "loader"):
                setattr(self, "net_kind" if section == "net" else "loader", make(value))
            else:
                self.fields[section][rest] = make(value)

    def _change_batch(self, place: str, value: str) -> None:
        index, _, slot = place.partition(".")
        if slot:
            row = self.values[int(index)]
            row[SLOTS.index(slot)] = ARRAYS[value](arrays()[SLOTS.index(slot)])
        else:
            self.forms[int(index)] = value

    def spec(self) -> TaskSpec:
        fields = self.fields
        own: dict[str, Any] = {
            "labels": [LabelSpec(**fields["label"]), "z"],
            "losses": {"p": LossSpec(**fields["loss"]), "q": LossSpec(gluon.loss.L2Loss(), "q", "z")},
            "metrics": {"m": MetricSpec(**fields["metric"])},
        }
        return TaskSpec(**{**own, **fields["task"]})

    def trainers(self) -> Any:
        return {"all": TrainerSpec(**self.fields["trainer"])}

    def data(self) -> Any:
        batches = [BATCHES[self.forms.get(i, "list")](row) for i, row in enumerate(self.values)]
        return LOADERS[self.loader](batches)
