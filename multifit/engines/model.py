"""What the models of all engines do alike: the spec for a single loss, and changes of a net's parameters."""

from collections.abc import Callable, Mapping
from typing import Any

from ..spec import LossSpec, MetricSpec, TaskSpec
from ..spec.checks.trainers import listing
from ..utils.errors import Problem, SpecError
from ..utils.text import shown


def default_spec(
    loss: object, log_once: Callable[[str], None], metrics: Callable[[Any], Mapping[str, Any]]
) -> TaskSpec:
    """Return the TaskSpec for a net with one input, output and label, and log the defaults.

    The names are "data", "output" and "label". ``metrics(loss)`` returns the metrics for a loss, by name.
    Raises SpecError if `loss` is not a loss.
    """
    if not callable(loss) or isinstance(loss, type):
        raise SpecError(
            f"spec is {shown(loss)}; give a TaskSpec, or one loss for a net with one input, one output and "
            "one label"
        )
    kind = getattr(loss, "__name__", type(loss).__name__)
    log_once(
        f"default TaskSpec for {kind}: the net's input is called data, its output output, the label label"
    )
    of_loss = metrics(loss)
    log_once(f"default metric for {kind}: {', '.join(of_loss) or 'none, only the loss'}")
    return TaskSpec(
        inputs=["data"], outputs=["output"], labels=["label"],
        losses={"output": LossSpec(loss, outputs="output", labels="label")},
        metrics={name: MetricSpec(each, outputs="output", labels="label") for name, each in of_loss.items()},
    )  # fmt: skip


def changed_problems(current: Mapping[str, Any], known: Mapping[str, Any]) -> list[Problem]:
    """Return a problem if a net and its losses have other parameters by now than those that are known."""
    added, removed = _missing(current, known), _missing(known, current)
    changes = {
        "replaced": [name for name in removed if name in added],
        "added": [name for name in added if name not in removed],
        "removed": [name for name in removed if name not in added],
    }
    what = "; ".join(f"{change}: {listing(names)}" for change, names in changes.items() if names)
    message = f"net: it has other parameters than when the estimator was made; {what}"
    way_out = "make a new MultiEstimator(net, spec, trainers) after changing the net"
    return [Problem("spec", f"{message}; {way_out}")] if what else []


def made_problems(current: Mapping[str, Any], known: Mapping[str, Any]) -> list[Problem]:
    """Return a problem if a forward pass has made parameters that are not known."""
    made = _missing(current, known)
    message = (
        f"net: its forward pass has made {listing(made)}, which no trainer updates; make all layers in "
        "__init__, or call the net on a batch before MultiEstimator(net, spec, trainers)"
    )
    return [Problem("spec", message)] if made else []


def _missing(parameters: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return the names of the parameters that are not among `others`, whatever their names there."""
    known = {id(each) for each in others.values()}
    return [name for name, each in parameters.items() if id(each) not in known]
