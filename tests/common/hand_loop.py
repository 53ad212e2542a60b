"""The hand-written Gluon loop that trainings are compared with."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from multifit import Handler, LoggingHandler, MultiEstimator, ProgressBar, TaskSpec, TrainerSpec
from multifit.gluon.optim.preserve_state import kept_statistics

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon  # isort: skip

from .compare import assert_same_parameters, twins
from .nets import hybridized

SGD = {"learning_rate": 0.05, "momentum": 0.9}
ADAM = {"learning_rate": 5e-3}
# The first batches run on a planned graph; then the sizes change.
SIZES = [12, 12, 12, 7, 12, 1]


class Silent(Handler):
    """Shows and logs nothing, in place of the default handlers that do."""

    replaces = (LoggingHandler, ProgressBar)

    def train_end(self, estimator: Any) -> None:
        """Do nothing."""


SILENT = [Silent()]


def train_by_hand(
    net: Any, trainers: Any, batches: Iterable[Sequence[Any]], objective: Callable[..., Any], by: Any = len
) -> None:
    """Train on one device as Gluon's tutorials do.

    ``objective(net, *batch)`` is the loss of each sample, or one number. The trainers divide the gradients by
    ``by(batch[0])``.
    """
    for batch in batches:
        with autograd.record():
            loss = objective(net, *[mx.nd.array(array, dtype=array.dtype) for array in batch])
        loss.backward()
        for trainer in trainers if isinstance(trainers, (list, tuple)) else [trainers]:
            trainer.step(by(batch[0]), ignore_stale_grad=True)


def check_by_hand(net: Any, *inputs: Any) -> None:
    """Run a net once in training mode, as the check of a first batch does: it draws random numbers."""
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in inputs]
    with kept_statistics(net.collect_params().values()), autograd.record():
        net(*arrays)


def trainer_of(net: Any, optimizer: str = "sgd", options: Any = None) -> Any:
    """Return Gluon's Trainer of all parameters of a net."""
    return gluon.Trainer(net.collect_params(), optimizer, dict(SGD if options is None else options))


def train(
    net: Any,
    spec: TaskSpec,
    batches: Iterable[Any],
    context: Any = None,
    trainers: Any = None,
    batch_axis: int = 0,
) -> MultiEstimator:
    """Fit for one epoch, without a word; the default is one SGD trainer."""
    trainers = TrainerSpec(".*", "sgd", SGD) if trainers is None else trainers
    estimator = MultiEstimator(net, spec, trainers=trainers, context=context)
    estimator.fit(batches, epochs=1, event_handlers=SILENT, batch_axis=batch_axis)
    return estimator


def assert_trains_as_by_hand(
    make: Callable[[], Any],
    spec: TaskSpec,
    batches: list[Any],
    objective: Callable[..., Any],
    devices: Any = None,
    hybrid: bool = False,
    optimizer: str = "sgd",
    options: Any = None,
    inputs: int = 1,
    by: Any = len,
    fed: Iterable[Any] | None = None,
    batch_axis: int = 0,
) -> MultiEstimator:
    """Check that one epoch of `fit` gives the parameters of the hand-written loop, on every device.

    `make` returns a net, and is called twice; `objective` and `by` are those of :func:`train_by_hand`. The
    first `inputs` arrays of a batch are the net's. `fed` are the estimator's batches, where they are others
    than the loop's, and `batch_axis` is theirs.
    """
    options = SGD if options is None else options
    hand, net = twins(make, *batches[0][:inputs])
    train_by_hand(hand, trainer_of(hand, optimizer, options), batches, objective, by)
    trainer, fed = TrainerSpec(".*", optimizer, options), batches if fed is None else fed
    estimator = train(hybridized(net, hybrid), spec, fed, devices, trainer, batch_axis)
    assert_same_parameters(net, hand)
    return estimator
