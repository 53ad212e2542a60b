"""Public classes and methods with right arguments, and how a case calls them with others."""

import inspect
import tempfile
from typing import Any

import multifit
from multifit import MultiEstimator, losses, metrics, schedules

from .cases import Setup
from .data import arrays
from .nets import net
from .values import Named, make

# Right arguments where there is no default value, or none that is quick; a path with / is in a new folder.
RIGHT: dict[str, dict[str, Any]] = {
    "CheckpointHandler": {"folder": "/c"},
    "CutMix": {"inputs": "x", "label": "y", "loss": "p", "random": 3},
    "EarlyStoppingHandler": {"monitor": "train_loss"},
    "Every": {"n": 2},
    "Freeze": {"params": "p.*", "until": 1},
    "History": {"figures": {"train_loss": [1.0]}},
    "LabelSmoothing": {"loss": "p"},
    "LabelSpec": {"name": "y"},
    "LogFile": {"path": "/log.csv"},
    "MetricSpec": {"metric": None},
    "MixUp": {"inputs": "x", "label": "y", "loss": "p", "random": 3},
    "PlateauHandler": {"monitor": "train_loss"},
    "ProgressBar": {"enabled": False},
    "Sharded": {"loader": [1]},
    "StoppingHandler": {"max_batch": 2},
    "TensorBoardHandler": {"folder": "/t"},
    "TrainerSpec": {"params": ".*"},
    "ValidationHandler": {"val_data": [arrays()]},
    "batches": {"x": [1.0, 2.0]},
    "connect": {"kind": "none"},
    "schedules.OneCycle": {"max_lr": 0.1, "steps": 4},
    "schedules.WarmUp": {"scheduler": Named("scheduler"), "steps": 2},
    "schedules.piecewise": {"weights": {0: 1.0, 2: 0.5}},
    "schedules.ramp": {"start": 0.0, "end": 1.0, "epochs": 2},
    "estimator.direction": {"figure": "train_loss"},
    "estimator.evaluate": {},
    "estimator.export": {"folder": "/e"},
    "estimator.figures": {},
    "estimator.find_learning_rate": {"batches": 10},
    "estimator.fit": {"epochs": 1},
    "estimator.freeze": {"params": "p.*"},
    "estimator.profile": {"batches": 1},
    "estimator.unfreeze": {"params": "p.*"},
    "TaskSpec.combine": {"shared": ["x"], "a": Named("spec"), "b": Named("spec")},
}
# Arguments that are the same in all cases, or would change what the process writes to or reads from.
FIXED = {
    "self", "data", "train_data", "batch_axis", "stream", "clock", "busy", "arguments", "specs", "output",
}  # fmt: skip
OTHERS = {
    "Handler", "LogTo", "MetricHandler", "MultiEstimator", "Plan", "Priority", "Problem", "Prune", "RunState",
    "Shards", "TaskSpec", "write_report",
}  # fmt: skip


def target(name: str) -> Any:
    """Return what a name of `CALLS` stands for."""
    found: Any = multifit
    for part in name.replace("estimator.", "MultiEstimator.").split("."):
        found = getattr(found, part)
    return found


def _arguments(name: str) -> dict[str, Any]:
    """Return right arguments: the default values, or others that are given above."""
    parameters = inspect.signature(target(name)).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {each.name: each.default for each in parameters if each.kind in kinds and each.name not in FIXED}
    return {**named, **RIGHT.get(name, {})}


CALLS: dict[str, dict[str, Any]] = {
    name: _arguments(name)
    for name in [
        *(name for name in multifit.__all__ if callable(target(name)) and not name.endswith("Error")),
        *(f"{module.__name__.rpartition('.')[2]}.{name}" for module in (losses, metrics, schedules)
          for name in module.__all__),
        *(name for name in RIGHT if name.startswith(("estimator.", "TaskSpec."))),
    ]
    if name not in OTHERS
}  # fmt: skip


def called(name: str, changes: dict[str, Any]) -> tuple[Any, Any]:
    """Call one of `CALLS` with changed arguments; return the result and the estimator, if any."""
    folder = tempfile.mkdtemp(dir=".")
    right = {key: folder + value if str(value)[:1] == "/" else value for key, value in CALLS[name].items()}
    arguments = {key: make(value) for key, value in {**right, **changes}.items()}
    if name.startswith("estimator."):
        attribute = name.partition(".")[2]
        estimator = tiny_estimator()
        if attribute in ("export", "figures"):
            estimator.fit([arrays()], batches=1, event_handlers=[])
        if attribute in ("evaluate", "find_learning_rate", "fit", "profile"):
            return getattr(estimator, attribute)([arrays()], **arguments), estimator
        return getattr(estimator, attribute)(**arguments), estimator
    result = target(name)(**arguments)
    if not hasattr(result, "priority"):
        return result, None
    estimator = tiny_estimator()
    estimator.fit([arrays()], batches=2, event_handlers=result)
    return result, estimator


def tiny_estimator() -> MultiEstimator:
    setup = Setup(())
    return MultiEstimator(net("hybridized"), setup.spec(), setup.trainers())
