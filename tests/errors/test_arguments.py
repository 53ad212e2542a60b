"""Arguments of constructors, of the estimator and its methods, and the figures that handlers monitor."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mxnet import gluon, lr_scheduler

import multifit
from multifit import (
    EarlyStoppingHandler,
    Every,
    MetricSpec,
    MultiEstimator,
    SpecError,
    StoppingHandler,
    TaskSpec,
    losses,
    metrics,
    schedules,
)

from .setups import BOTH, Setup, fault

NAN, INF = float("nan"), float("inf")
NEEDED: dict[str, dict[str, Any]] = {
    "CheckpointHandler": {"folder": "run"},
    "EarlyStoppingHandler": {"monitor": "val_loss"},
    "Every": {"n": 1},
    "Freeze": {"params": "body.*", "until": 1},
    "LogFile": {"path": "log"},
    "LogTo": {"logger": SimpleNamespace(log_figures=print)},
    "OneCycle": {"max_lr": 0.1, "steps": 10},
    "PlateauHandler": {"monitor": "val_loss"},
    "Prune": {"trial": None, "monitor": "val_loss"},
    "Sharded": {"loader": [1]},
    "TensorBoardHandler": {"folder": "run"},
    "ValidationHandler": {"val_data": [1]},
    "WarmUp": {"scheduler": lr_scheduler.FactorScheduler(10), "steps": 10},
    "batches": {"x": [1.0]},
    "piecewise": {"weights": {0: 1.0}},
    "ramp": {"start": 0.0, "end": 1.0, "steps": 3},
}
OTHERS = ("Spec", "Estimator", "Error", "Plan", "Problem", "Priority", "RunState", "write_report")
CONSTRUCTORS = {
    name: getattr(module, name)
    for module in (multifit, losses, metrics, schedules)
    for name in module.__all__
    if callable(getattr(module, name)) and not name.endswith(OTHERS)
}
ABSURD = [None, -1, 0.5, NAN, INF, 10**400, True, "", "x", b"x", [], [3], {}, object(), lambda a, b, c, d: a]
TAKES_ANY = {
    "Every": "handler",
    "Freeze": "params",
    "Prune": "trial",
    "Sharded": "loader",
    "ValidationHandler": "val_data",
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is written by a constructor, or where an argument is refused."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_every_argument_refuses_what_it_does_not_take_and_is_named(name: str) -> None:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for argument, parameter in inspect.signature(CONSTRUCTORS[name]).parameters.items():
        if parameter.kind not in kinds or TAKES_ANY.get(name) == argument:
            continue
        refused = 0
        for value in ABSURD:
            try:
                CONSTRUCTORS[name](**{**NEEDED.get(name, {}), argument: value})
            except ValueError as error:
                refused += 1
                assert re.search(rf"^{name}.*{argument}", str(error))
        assert refused > 1, argument


FROM_0, FROM_1 = "a whole number of at least 0", "a whole number of at least 1"
POSITIVE, NOT_NEGATIVE = "a finite number above 0", "a finite number of at least 0"
SHARE, OPEN_SHARE = f"{NOT_NEGATIVE} and below 1", f"{POSITIVE} and below 1"
NAMES = "a name, a list of names or None"
AXES = "-1 or 2 for logits (N, T, V), 1 for (N, V, T)"
SIGNALS = "InterruptHandler: signals is"
EVERY = f'{FROM_1}, Every(n, "batch") without a handler or None'
WEIGHTS = "a dict with epoch 0, such as {0: 0.1, 5: 1.0}: 0.1 for five epochs, then 1"
# constructor, argument, what is valid, and what is almost
BOUNDS: list[tuple[str, str, str, list[Any]]] = [
    ("CheckpointHandler", "every", EVERY, [0, "epoch", Every(2, "batch", StoppingHandler())]),
    ("CheckpointHandler", "seed", f"{FROM_0} and below 4294967296 or None", [1.5, 2**32]),
    ("CutMix", "alpha", POSITIVE, [0]), ("CutMix", "label", NAMES, [()]), ("MixUp", "alpha", POSITIVE, [0]),
    ("Every", "n", FROM_1, [0]), ("Every", "unit", '"epoch" or "batch"', [[], 3]),
    ("LabelSmoothing", "epsilon", SHARE, [1]), ("LogTo", "every", f"{FROM_1} or None", [0, 1.5]),
    ("StoppingHandler", "max_epoch", f"{FROM_1} or None", [0]), ("WeightAveraging", "decay", SHARE, [1]),
    ("StoppingHandler", "max_seconds", f"{POSITIVE} or None", [0]),
    ("PlateauHandler", "factor", OPEN_SHARE, [0, 1.0]),
    ("OneCycle", "max_lr", POSITIVE, [0]), ("OneCycle", "warm", OPEN_SHARE, [0, 1]),
    ("OneCycle", "start_divisor", "a finite number of at least 1", [0.5]),
    ("WarmUp", "scheduler", "an instance with a base_lr, such as OneCycle(0.01, 1000)",
     [1e-3, lr_scheduler.FactorScheduler]),
    ("piecewise", "weights", WEIGHTS, [{1: 1.0}]), ("SequenceCELoss", "axis", AXES, [0, 3, -2]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "argument", "valid", "values"), BOUNDS)
def test_bounds(name: str, argument: str, valid: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError) as caught:
            CONSTRUCTORS[name](**{**NEEDED.get(name, {}), argument: value})
        assert str(caught.value) == f"{name}: {argument} is {value!r}; valid is {valid}"


# constructor, its arguments, the message
WORDS: list[tuple[str, dict[str, Any], str]] = [
    ("Every", {"unit": "batches"}, "Every: unit is 'batches' (did you mean \"batch\"?); valid is"),
    ("InterruptHandler", {"signals": "SIGTREM"}, f"{SIGNALS} 'SIGTREM' (did you mean \"SIGTERM\"?); valid"),
    ("InterruptHandler", {"signals": ["SIGINT", "SIGKILL"]}, f"{SIGNALS} ['SIGINT', 'SIGKILL']; valid is"),
    ("ValidationHandler", {"epoch_period": None}, "ValidationHandler would never evaluate: give"),
    ("LoggingHandler", {"figures": "("}, 'figures: "(" is not a valid regular expression'),
    ("ProgressBar", {"figures": "("}, 'figures: "(" is not a valid regular expression'),
    ("ramp", {"steps": None}, "ramp was given epochs=None and steps=None; give exactly one of them"),
    ("piecewise", {"weights": {0: 1, -1: 1}}, f"piecewise: an epoch of weights is -1; valid is {FROM_0}"),
    ("piecewise", {"weights": {0: 1, 2: -1}}, f"piecewise: weights[2] is -1; valid is {NOT_NEGATIVE}"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), WORDS)
def test_other_invalid_arguments(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CONSTRUCTORS[name](**{**NEEDED.get(name, {}), **arguments})


# ---- the estimator -----------------------------------------------------------------------------------------

# the method and its arguments, and the message
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("fit", {}, "fit was given epochs=None and batches=None; give exactly one: epochs=10, or batches=1000"),
    ("fit", {"epochs": 1, "batches": 1}, "fit was given epochs=1 and batches=1; give exactly one"),
    ("fit", {"epochs": 0}, "epochs is 0; valid is a whole number of at least 1"),
    ("fit", {"epochs": 1.5}, "epochs is 1.5"), ("fit", {"batches": True}, "batches is True"),
    ("fit", {"epochs": 1, "resume": 3}, "resume is "), ("evaluate", {"batch_axis": -3}, "batch_axis is "),
    ("export", {"folder": 3}, "export: folder is "), ("export", {"folder": "out", "format": []}, "format"),
    ("figures", {"stage": []}, "figures: stage is "), ("direction", {"figure": []}, "direction: figure is "),
    ("find_learning_rate", {"trainer": 3}, "trainer is "), ("profile", {"batches": 0}, "batches is "),
    ("profile", {"clock": 3}, "clock is "), ("write_checkpoint", {"folder": []}, "folder is "),
]  # fmt: skip


@pytest.mark.parametrize(("method", "arguments", "text"), CALLS)
def test_wrong_arguments_of_methods(setup: Setup, method: str, arguments: Any, text: str) -> None:
    estimator, before = setup.make(), setup.parameters()
    data = [setup.data] if method in ("fit", "evaluate", "find_learning_rate", "profile") else []
    with pytest.raises(ValueError) as raised:
        getattr(estimator, method)(*data, **arguments)
    assert type(raised.value) is ValueError and text in str(raised.value)
    assert "; valid is " in str(raised.value) or "give exactly one" in str(raised.value)
    assert not setup.moved(before)
    estimator.fit(setup.data, batches=1)


def test_the_net_must_be_a_block_and_the_spec_a_task_spec_or_a_loss(setup: Setup) -> None:
    with pytest.raises(SpecError, match="not a torch.nn.Module or gluon.Block; give the net itself"):
        MultiEstimator(gluon.nn.Dense, TaskSpec(**setup.spec))
    for spec in ("softmax", [gluon.loss.SoftmaxCrossEntropyLoss()] * 9):
        with pytest.raises(SpecError, match="spec is .*; give a TaskSpec, or one loss for a net with one in"):
            MultiEstimator(setup.net, spec)


def stopping(setup: Setup, monitor: str, **changes: Any) -> Setup:
    return setup.but(handlers=(EarlyStoppingHandler(monitor),), **changes)


own_metric = {"own": MetricSpec(lambda labels, outputs: 1.0, **BOTH)}
watching = type("Watching", (), {"mode": "min", "monitor": "train_amont", "epoch_end": print})()


# fmt: off
FAULTS = [
    fault("unknown", lambda s: stopping(s, "val_acuracy", val_data=s.data),
        'EarlyStoppingHandler: there is no figure "val_acuracy" (did you mean "val_accuracy"?)',
        'figures are "train_loss", "train_digit", "train_amount", "train_accuracy"'),
    fault("without validation data", lambda s: stopping(s, "val_loss"),
        'there is no figure "val_loss"', "val_ figures need validation data"),
    fault("of unknown direction", lambda s: stopping(s, "train_own", metrics=own_metric),
        'EarlyStoppingHandler: it is not known whether a lower or a higher "train_own" is better',
        'give mode="min" or "max" in the MetricSpec or in the handler'),
    fault("two", lambda s: s.but(handlers=(EarlyStoppingHandler("train_lss"), watching)),
        "EarlyStoppingHandler: ",
        'Watching: there is no figure "train_amont" (did you mean "train_amount"?)'),
]
# fmt: on


@pytest.mark.parametrize(("change", "texts"), FAULTS)
def test_a_monitored_figure_must_exist_and_have_a_direction(setup: Setup, change: Any, texts: Any) -> None:
    change(setup).refused(ValueError, *texts)


class Recorder:
    """Records a figure of its own: the number of the epoch, below zero."""

    def epoch_end(self, estimator: Any) -> None:
        estimator.history.record({"gap": -float(estimator.state.epoch)})


def test_a_figure_that_a_handler_records_can_be_monitored(setup: Setup, caplog: Any) -> None:
    """Not without a direction, nor without that handler; one that comes too late is warned of once."""
    stopping, estimator = EarlyStoppingHandler("gap", mode="max", restore_best=True), setup.make()
    estimator.fit(setup.data, epochs=5, event_handlers=[Recorder(), stopping])
    assert estimator.state.epoch == 2 and estimator.history["gap"] == [0.0, -1.0]

    unknown = 'EarlyStoppingHandler: there is no figure "gap"; figures are "train_loss", '
    setup.but(handlers=(stopping,)).refused(ValueError, unknown)
    way_out = 'for one that Recorder records, give mode="min" or mode="max"'
    setup.but(handlers=(EarlyStoppingHandler("gap"), Recorder())).refused(ValueError, unknown, way_out)

    caplog.clear()
    setup.make().fit(setup.data, epochs=3, event_handlers=[stopping, Recorder()])
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 'EarlyStoppingHandler: there is no figure "gap" at the end of epoch 1; figures are "t' in warning
    assert "list that one first, or give it a lower pr" in warning
