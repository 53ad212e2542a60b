"""Fits with a method of balancing, and the same by hand, as the papers do it: in NumPy and autograd."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifit import MultiEstimator, TrainerSpec
from multifit.balance.protocol import measured_losses, weigh_gradients, weigh_losses
from tests.common.data import digit_batches
from tests.common.hand_loop import SGD, SILENT, SIZES
from tests.common.specs import BCE, CE, L2, digit_spec

from mxnet import autograd, gluon, nd  # isort: skip

BATCHES = digit_batches(SIZES)
EVEN = BATCHES[:-1]  # two devices need two samples


def fitted(
    net: Any, method: Any, batches: Any = BATCHES, epochs: int = 1, devices: Any = None, **options: Any
) -> MultiEstimator:
    """Fit; `options` are the estimator's, `handlers`, and `fit`, the other options of the fit."""
    trainers = options.pop("trainers", TrainerSpec(".*", "sgd", SGD))
    fit = {"event_handlers": [*SILENT, *options.pop("handlers", [])], **options.pop("fit", {})}
    spec = options.pop("spec", None) or digit_spec()
    estimator = MultiEstimator(net, spec, trainers, devices, balance=method, **options)
    estimator.fit(batches, epochs=epochs, **fit)
    return estimator


def losses_of(net: Any, batch: Any, shift: Any = 0) -> list:
    """Return the losses that `digit_spec` or `three_tasks` declares; `shift` gets the features' gradient."""
    x, digit, parity = (nd.array(array, dtype=array.dtype) for array in batch)
    features = net.body(x) + shift
    pair = net.pair(features) if hasattr(net, "pair") else features
    losses = [CE(net.digit(pair), digit).mean(), 0.5 * BCE(net.parity(pair), parity).mean()]
    return [*losses, 0.1 * L2(net.size(features), parity).mean()] if hasattr(net, "pair") else losses


def numbers(losses: Sequence[Any]) -> np.ndarray:
    return np.array([loss.asscalar() for loss in losses], "float64")


class ByHand:
    """Trains a net of two or three tasks; an update is by the mean gradient of `window` batches.

    `compared` are the parameters whose gradients are compared, by how their names begin; by default, those
    of the features are, which the net's body returns. `epochs` are lists of the weights of each batch, and
    `norms` and `cosines` are those of the first two tasks in the batches in which weights are computed.
    """

    def __init__(
        self,
        net: Any,
        method: Any,
        batches: Sequence[Any] = BATCHES,
        epochs: int = 1,
        window: int = 1,
        compared: tuple[str, ...] = ("features",),
    ) -> None:
        self.net, self.method, self.compared = net, method, compared
        self.parameters = {
            name: p for name, p in net._collect_params_with_prefix().items() if p.grad_req != "null"
        }
        self.weights, self.state = None, None
        self.epochs: list[list[np.ndarray]] = []
        self.norms: list[np.ndarray] = []
        self.cosines: list[float] = []
        trainer, added, step = gluon.Trainer(net.collect_params(), "sgd", dict(SGD)), [], 0
        for epoch in range(epochs):
            self.epochs.append([])
            for number, batch in enumerate(batches, 1):
                self.shift = nd.zeros_like(net.body(nd.array(batch[0])))
                self.shift.attach_grad()
                with autograd.record():
                    losses = losses_of(net, batch, self.shift)
                added.append((len(batch[0]), self.gradients(losses, epoch, step)))
                self.epochs[-1].append(self.weights)
                if len(added) == window or number == len(batches):
                    samples = sum(count for count, _ in added)
                    for name, parameter in self.parameters.items():
                        total = sum(count / samples * gradients[name] for count, gradients in added)
                        parameter.grad()[:] = nd.array(total)
                    trainer.step(1)
                    added = []
                if hasattr(method, "after_update") and step % method.every == 0:
                    self.look_back(batch)
                step += 1

    def gradients(self, losses: Sequence[Any], epoch: int, step: int) -> dict[str, np.ndarray]:
        method, count, is_due = self.method, len(losses), step % self.method.every == 0
        if self.weights is None:
            self.weights, self.state = np.ones(count), method.start(count)
        if method.needs != "gramian":
            values = np.ones(count) if method.needs == "nothing" else numbers(losses)
            self.measured = measured_losses(np, count, values, np.full(count, float(epoch)), step)
            if is_due:
                self.weights, self.state = weigh_losses(method, self.measured, self.weights, self.state)
            autograd.backward(losses, [nd.array([weight]) for weight in self.weights])
            return {name: p.grad().asnumpy() for name, p in self.parameters.items()}
        of_tasks = []
        for loss in losses:
            for parameter in self.parameters.values():
                parameter.zero_grad()
            loss.backward(retain_graph=True)
            gradients = {name: p.grad().asnumpy() for name, p in self.parameters.items()}
            of_tasks.append({**gradients, "features": self.shift.grad.asnumpy()})
        chosen = [name for name in of_tasks[0] if name.startswith(self.compared)]
        rows = [np.concatenate([each[name].ravel() for name in chosen]) for each in of_tasks]
        rows = np.stack(rows).astype("float64")
        if is_due:
            gramian, preference = rows @ rows.T, method.preference and np.array([1.5, 0.5])
            arguments = method, numbers(losses), gramian, self.weights, self.state, epoch, step
            self.weights, self.state = weigh_gradients(*arguments, preference=preference)
            self.norms.append(np.sqrt(np.diag(gramian)))
            self.cosines.append(gramian[0, 1] / self.norms[-1][:2].prod())
        return {
            name: sum(
                (weight if name.startswith(("body", "pair")) else 1.0) * gradients[name]
                for weight, gradients in zip(self.weights, of_tasks)
            )
            for name in self.parameters
        }

    def look_back(self, batch: Any) -> None:
        statistics = {n: p.data().copy() for n, p in self.net.collect_params(".*running.*").items()}
        with autograd.pause(train_mode=True):
            after = numbers(losses_of(self.net, batch))
        self.state = self.method.after_update(self.measured, after, self.state)
        for name, value in statistics.items():
            self.net.collect_params()[name].set_data(value)
