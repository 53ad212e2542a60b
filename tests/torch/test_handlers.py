"""Handlers of bridged nets get tensors; what they change and set has the effect that it has with MXNet."""

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multifit import (
    CheckpointHandler,
    CutMix,
    EarlyStoppingHandler,
    Interpretation,
    LabelSmoothing,
    LabelSpec,
    LossSpec,
    MixUp,
    MultiEstimator,
    SkipNonFinite,
    SpecError,
    TaskSpec,
    TerminateOnNaN,
    TrainerSpec,
    WeightAveraging,
)
from multifit.gluon.compat import mx
from multifit.sampling import RoundRobin
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.handlers import handler
from tests.common.nets import TWO_HEADS, Heads, sequential
from tests.common.specs import L2, two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import (
    ADAM,
    BATCHES,
    RHYTHMS,
    Run,
    assert_equal,
    assert_is_mxnets,
    estimator_of,
    handled,
)
from tests.torch.test_engine import MOMENTUM, WORDS, normalized, scaled, turns


class Parameter(mx.gluon.HybridBlock):
    """A scale for each of three columns, which it also returns: as it is, and as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, 3), init="ones")

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        return F.broadcast_mul(x, scale), F.identity(scale), F.reshape(scale, (3,))


def columns() -> TaskSpec:
    names, losses = ["y", "scale", "flat"], {"y": LossSpec(L2, "y", "y")}
    return TaskSpec(inputs=["x"], outputs=names, labels=["y"], losses=losses, unused=names[1:])


def value(estimator: Any, name: str) -> Any:
    """Return a parameter's values, through which gradients pass."""
    parameter = estimator.parameters[name]
    return parameter.data() if isinstance(parameter, mx.gluon.Parameter) else parameter


def scale(estimator: Any, factor: float) -> None:
    estimator.set_values({name: each * factor for name, each in estimator.values().items()})


def add_squares(estimator: Any, objectives: Any, pred: Any, loss: Any, label: Any) -> Any:
    """Add the squares of an output, of a loss and of a parameter to the objective."""
    (size,), (digit,), (true,) = pred["size"], loss["digit"], label["size"]
    weight = value(estimator, "body.weight")
    return [*objectives, 0.01 * ((size**2).sum() + (digit**2).sum() + (weight**2).sum() + true.sum())]


def one_error(estimator: Any, objectives: Any, pred: Any, label: Any) -> Any:
    """Replace the objective by the error of one head: the other gets gradients of 0."""
    ((output,), (true,)) = pred["size"], label["size"]
    return [((output - true.reshape(output.shape)) ** 2).mean()]


def doubled(estimator: Any, outputs: Any, slots: Any) -> Any:
    """Double an output, and add what depends on a parameter and on an input."""
    bias = value(estimator, "size.bias").sum()
    shifted = outputs["digit"] + slots["image"].mean(axis=1, keepdims=True)
    return {"size": outputs["size"] * 2 + 0.1 * bias, "digit": shifted}


def doubled_state(estimator: Any, outputs: Any, slots: Any) -> Any:
    """Double the logits, and the state that the next batch begins with; add what the batch began with."""
    return {"logits": outputs["logits"] * 2, "hidden": outputs["hidden"] * 2 + slots["hidden"]}


def ones(estimator: Any, outputs: Any, slots: Any) -> Any:
    return {"digit": (outputs["digit"] * 0 + 1).detach()}


def halved_inputs(estimator: Any, slots: Any) -> Any:
    return {"image": slots["image"] / 2}


def halve_biases_and_decay(estimator: Any) -> None:
    for of in estimator.gradients().values():
        for name, (gradient,) in of.items():
            if name.endswith("bias"):
                gradient *= 0.5
            else:
                gradient += 0.1 * value(estimator, name).detach()


def hold_third(estimator: Any, loss: Any) -> bool:
    assert all(estimator.arrays.numpy(array).all() for arrays in loss.values() for array in arrays)
    return estimator.state.step % 3 == 2


def hold_digit(estimator: Any, loss: Any) -> bool:
    return loss["digit"][0] is not None


@contextmanager
def halved(estimator: Any) -> Iterator[None]:
    """Train on halved values, and double what comes of it."""
    scale(estimator, 0.5)
    yield
    scale(estimator, 2.0)


def clip_values(estimator: Any) -> None:
    estimator.set_values({"body.weight": np.clip(estimator.values()["body.weight"], -0.3, 0.3)})


def set_momenta(estimator: Any) -> None:
    """Raise the momentum from 0, which begins anew, and set rates."""
    for trainer in estimator.trainers.values():
        trainer.momentum = (0.0, 0.9, 0.5, 0.0, 0.9)[estimator.state.step % 5]
        trainer.learning_rate = 0.05


class States:
    """Saves the trainers' states after the first epoch, and loads them after the second."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._saved = folder, False

    def epoch_end(self, estimator: Any) -> None:
        for name, trainer in estimator.trainers.items():
            (trainer.load_states if self._saved else trainer.save_states)(str(self._folder / name))
        self._saved = True


class Sees:
    """Sees the gradients of the trainers that move, and the outputs."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def change_gradients(self, estimator: Any) -> None:
        numpy = estimator.arrays.numpy
        for trainer, of in estimator.gradients().items():
            self.seen.append({f"{trainer} {name}": numpy(gradient) for name, (gradient,) in of.items()})

    def batch_end(self, estimator: Any, pred: Any) -> None:
        self.seen.append({name: estimator.arrays.numpy(array) for name, (array,) in pred.items()})


class SeesFigures:
    """Sees the figures after each batch, of which some have no sample yet."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def batch_end(self, estimator: Any) -> None:
        self.seen.append(estimator.figures("train"))

    def evaluate_batch_end(self, estimator: Any) -> None:
        self.seen.append(estimator.figures("evaluate"))


ZEROS = [(np.ones((2, 3)), np.zeros((2, 3)))] * 4
PENALTY = partial(handler, change_objective=add_squares)
HALVE = partial(handler, change_batch=halved_inputs, change_gradients=halve_biases_and_decay)
MOMENTA = partial(handler, batch_begin=set_momenta)
RUNS = {
    "MixUp": handled(lambda: MixUp(alpha=0.8)),
    "MixUp of a loss with parameters": handled(lambda: MixUp(random=3), spec=scaled),
    "CutMix": handled(CutMix, data=[(x.reshape((-1, 1, 2, 3)), *labels) for x, *labels in BATCHES]),
    "LabelSmoothing": handled(lambda: LabelSmoothing(0.2), spec=normalized),
    "MixUp, smoothing, penalty": handled(MixUp, LabelSmoothing, PENALTY, options={"accumulate": 2}),
    "another objective": handled(lambda: handler(change_objective=one_error)),
    "outputs and objective": handled(lambda: handler(change_outputs=doubled), PENALTY, MixUp, spec=scaled),
    "a constant output": handled(lambda: handler(change_outputs=ones)),
    "batch and gradients": handled(HALVE, trainers=RHYTHMS),
    "held updates": handled(lambda: handler(hold_update=hold_third), trainers=RHYTHMS),
    "averages of batches": handled(lambda: WeightAveraging("ema", decay=0.8)),
    "averages of epochs": handled(lambda: WeightAveraging("swa")),
    "finite": handled(SkipNonFinite, TerminateOnNaN),
    "values that are set": handled(lambda: handler(around_step=halved, epoch_end=clip_values)),
    "states": Run(trainers=RHYTHMS, handlers=lambda folder: [States(folder)]),
    "momenta of sgd": handled(MOMENTA, trainers=TrainerSpec(".*", "sgd", {**MOMENTUM, "momentum": 0.0})),
    "momenta of nag": handled(MOMENTA, trainers=TrainerSpec(".*", "nag", {**MOMENTUM, "momentum": 0.0})),
    "carried state, changed outputs": handled(lambda: handler(change_outputs=doubled_state), of=WORDS),
    "loaders, held updates": handled(lambda: handler(hold_update=hold_digit), of=turns(RoundRobin())),
    "loaders, figures of batches": handled(SeesFigures, of=turns(RoundRobin(), normalized)),
    "gradients that are seen": handled(Sees, trainers=RHYTHMS),
    "an output that is a parameter": handled(Sees, net=Parameter, spec=columns, data=ZEROS),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_training_is_that_of_mxnet(name: str, tmp_path: Path) -> None:
    assert_is_mxnets(RUNS[name], tmp_path)


def test_values_that_a_handler_sets_count_for_predictions_and_files_at_once(tmp_path: Path) -> None:
    image = BATCHES[0][0]

    class Sets:
        def batch_end(self, estimator: Any) -> None:
            zeros = {name: 0 * value for name, value in estimator.values().items()}
            estimator.set_values(zeros)
            assert not estimator.predict(image)["digit"].any()
            ones = {"body.bias": np.ones(8, "float32"), "digit.weight": np.ones((3, 8), "float32")}
            estimator.set_values(ones)
            (values,) = estimator.save(tmp_path / "saved").parent.glob("*.params")
            assert (mx.nd.load(str(values))["body.bias"].asnumpy() == 1).all()
            assert (estimator.predict(image)["digit"] == 8).all()
            estimator.export(tmp_path / str(estimator.state.step), format="torch")

    estimator_of().fit(BATCHES, batches=2, event_handlers=[Sets()])
    for folder in (tmp_path / "1", tmp_path / "2"):
        exported = runpy.run_path(str(folder / "net.py"))["load"]()(torch.from_numpy(image))
        assert (exported["digit"] == 8).all()


@pytest.mark.parametrize("handler", [SkipNonFinite, TerminateOnNaN])
def test_batches_with_nan(handler: Any) -> None:
    arrays = two_head_arrays(40)
    arrays["image"][20] = np.nan

    def fit(engine: str) -> Any:
        # without relu, which makes 0 of NaN in MXNet's operator for CPUs
        body = sequential(mx.gluon.nn.Dense(8, use_bias=False), mx.gluon.nn.BatchNorm())
        seed_everything(5)
        estimator = MultiEstimator(Heads(body=body, **TWO_HEADS), two_head_spec(), ADAM, engine=engine)
        estimator.fit(in_batches(arrays.values()), epochs=1, event_handlers=[handler()])
        return estimator.values(), estimator.state.stop_reason

    (one, reason), (other, same) = fit("mxnet"), fit("torch")
    assert_equal(one, other, 1e-4)
    assert reason == same


def test_a_checkpoint_and_the_restored_net_have_the_averages(tmp_path: Path) -> None:
    estimator, other = estimator_of("float64"), estimator_of("float64")
    handlers = [
        WeightAveraging("ema", decay=0.8),
        CheckpointHandler(tmp_path, monitor="val_loss"),
        EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
    ]
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=handlers)
    other.load(tmp_path, "best")
    for each in (estimator, other):
        loss = each.evaluate(BATCHES, event_handlers=[])["loss"]
        np.testing.assert_allclose(loss, min(history["val_loss"]), rtol=1e-10)


def test_confusions_and_pairs_are_those_of_mxnet() -> None:
    spec = two_head_spec(labels=[LabelSpec("digit", missing=1), "size"])

    def interpret(engine: str) -> Any:
        found = Interpretation()
        estimator_of("float64", engine, spec=spec).evaluate(BATCHES, event_handlers=[found])
        assert 0 < found.confusion["digit"].sum() < sum(len(batch[0]) for batch in BATCHES)
        assert found.confusion["digit"][1].sum() == 0
        return [found.confusion, found.scatter]

    assert_engines_agree(interpret)


class Detached:
    def change_objective(self, estimator: Any, objectives: Any) -> Any:
        return [objective.detach() for objective in objectives]


class Transposed:
    """Returns other forms, but for the first batch, in which it is called by the check and by the step."""

    calls = 0

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        self.calls += 1
        return {"size": outputs["size"].T} if self.calls > 2 else {}


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (Detached, "losses: the objective has no gradient"),
        (Transposed, 'outputs: the net returns "size" as .1, 8. .* in the first batch'),
    ],
)
def test_errors_move_no_parameter(handler: Any, message: str) -> None:
    estimator, seen = estimator_of(), []

    class Watch:
        def batch_begin(self, estimator: Any) -> None:
            seen.append(estimator.values())

    with pytest.raises(SpecError, match=message):
        estimator.fit(BATCHES, epochs=1, event_handlers=[handler(), Watch()])
    np.testing.assert_equal(estimator.values(), seen[-1])
