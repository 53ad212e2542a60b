"""Arguments of the estimator and its fit, and the figures that handlers monitor."""

from typing import Any

import pytest
from mxnet import gluon

from multifit import (
    EarlyStoppingHandler,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
)

from .setups import BOTH, Setup, fault

# fmt: off
LENGTHS = [
    ({}, "fit was given epochs=None and batches=None; give exactly one: epochs=10, or batches=1000"),
    ({"epochs": 1, "batches": 1}, "fit was given epochs=1 and batches=1; give exactly one"),
    ({"epochs": 0}, "epochs is 0; valid is a whole number of at least 1"),
    ({"epochs": 1.5}, "epochs is 1.5"), ({"batches": True}, "batches is True"),
]
# fmt: on


@pytest.mark.parametrize(("lengths", "text"), LENGTHS, ids=[str(lengths) for lengths, _ in LENGTHS])
def test_wrong_epochs_and_batches(setup: Setup, lengths: dict, text: str) -> None:
    estimator, before = setup.make(), setup.parameters()
    with pytest.raises(ValueError) as raised:
        estimator.fit(setup.data, **lengths)
    assert type(raised.value) is ValueError
    assert text in str(raised.value) and not setup.moved(before)
    estimator.fit(setup.data, batches=1)


# fmt: off
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("fit", {"epochs": 1, "resume": 3}), ("evaluate", {"batch_axis": -3}),
    ("export", {"folder": 3}), ("export", {"folder": "out", "format": []}), ("figures", {"stage": []}),
    ("direction", {"figure": []}), ("find_learning_rate", {"trainer": 3}), ("profile", {"batches": 0}),
    ("profile", {"clock": 3}), ("write_checkpoint", {"folder": []}),
]
# fmt: on


@pytest.mark.parametrize(("method", "arguments"), CALLS, ids=[f"{name}{list(a)}" for name, a in CALLS])
def test_an_argument_of_a_wrong_type_is_named(setup: Setup, method: str, arguments: dict[str, Any]) -> None:
    estimator, before = setup.make(), setup.parameters()
    data = [setup.data] if method in ("fit", "evaluate", "find_learning_rate", "profile") else []
    with pytest.raises(ValueError, match=rf"{method}: {list(arguments)[-1]} is .*; valid is "):
        getattr(estimator, method)(*data, **arguments)
    assert not setup.moved(before)


def test_the_net_must_be_a_block_and_the_spec_a_task_spec_or_a_loss(setup: Setup) -> None:
    with pytest.raises(SpecError, match="not a torch.nn.Module or gluon.Block; give the net itself"):
        MultiEstimator(gluon.nn.Dense, TaskSpec(**setup.spec))
    for spec in ("softmax", [gluon.loss.SoftmaxCrossEntropyLoss()] * 9):
        with pytest.raises(SpecError, match="spec is .*; give a TaskSpec, or one loss for a net with one in"):
            MultiEstimator(setup.net, spec)


class Watching:
    """A user's handler that monitors a figure by name."""

    mode = "min"

    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def epoch_end(self, estimator: Any) -> None:
        pass


def stopping(setup: Setup, monitor: str, **changes: Any) -> Setup:
    return setup.but(handlers=(EarlyStoppingHandler(monitor),), **changes)


def own_metric(**fields: Any) -> dict[str, MetricSpec]:
    return {"own": MetricSpec(lambda labels, outputs: 1.0, **BOTH, **fields)}


# fmt: off
FAULTS = [
    fault("unknown", lambda s: stopping(s, "val_acuracy", val_data=s.data),
        'EarlyStoppingHandler: there is no figure "val_acuracy" (did you mean "val_accuracy"?)',
        'figures are "train_loss", "train_digit", "train_amount", "train_accuracy"'),
    fault("without validation data", lambda s: stopping(s, "val_loss"),
        'there is no figure "val_loss"', "val_ figures need validation data"),
    fault("of unknown direction", lambda s: stopping(s, "train_own", metrics=own_metric()),
        'EarlyStoppingHandler: it is not known whether a lower or a higher "train_own" is better',
        'give mode="min" or "max" in the MetricSpec or in the handler'),
    fault("two", lambda s: s.but(handlers=(EarlyStoppingHandler("train_lss"), Watching("train_amont"))),
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
