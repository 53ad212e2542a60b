"""Handlers of bridged nets get tensors; what they change and set has the effect that it has with MXNet."""

import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from multifit.utils.seeding import seed_everything
from tests.common.data import in_batches, two_head_arrays
from tests.common.nets import TWO_HEADS, Heads, sequential
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_close, assert_engines_agree
from tests.torch.runs import ADAM, BATCHES, RHYTHMS, assert_equal, estimator_of
from tests.torch.test_engine import Scaled


def value(estimator: Any, name: str) -> Any:
    """Return a parameter's values, through which gradients pass."""
    parameter = estimator.parameters[name]
    return parameter.data() if isinstance(parameter, mx.gluon.Parameter) else parameter


def scale(estimator: Any, factor: float) -> None:
    values = estimator.values().items()
    estimator.set_values({name: each * factor for name, each in values if "running" not in name})


class Penalty:
    """Adds the squares of an output, of a loss and of a parameter to the objective."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any, loss: Any, label: Any) -> Any:
        (size,), (digit,), (true,) = pred["size"], loss["digit"], label["size"]
        weight = value(estimator, "body.weight")
        return [*objectives, 0.01 * ((size**2).sum() + (digit**2).sum() + (weight**2).sum() + true.sum())]


class InPlaceOf:
    """Replaces the objective by a loss of its own of one head: the other gets gradients of 0."""

    def change_objective(self, estimator: Any, objectives: Any, pred: Any, label: Any) -> Any:
        ((output,), (true,)) = pred["size"], label["size"]
        return [((output - true.reshape(output.shape)) ** 2).mean()]


class Double:
    """Doubles an output, and adds what depends on a parameter and on an input."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        bias = value(estimator, "size.bias").sum()
        shifted = outputs["digit"] + slots["image"].mean(axis=1, keepdims=True)
        return {"size": outputs["size"] * 2 + 0.1 * bias, "digit": shifted}


class Constant:
    """Replaces an output by numbers."""

    def change_outputs(self, estimator: Any, outputs: Any, slots: Any) -> Any:
        return {"digit": (outputs["digit"] * 0 + 1).detach()}


class Halve:
    """Halves the inputs, and the gradients of the biases; decays the others."""

    def change_batch(self, estimator: Any, slots: Any) -> Any:
        return {"image": slots["image"] / 2}

    def change_gradients(self, estimator: Any) -> None:
        for of in estimator.gradients().values():
            for name, (gradient,) in of.items():
                if name.endswith("bias"):
                    gradient *= 0.5
                else:
                    gradient += 0.1 * value(estimator, name).detach()


class SkipThird:
    """Holds the update back after every third batch."""

    def hold_update(self, estimator: Any, loss: Any) -> bool:
        assert all(estimator.arrays.numpy(array).all() for arrays in loss.values() for array in arrays)
        return estimator.state.step % 3 == 2


class Around:
    """Trains on halved values, and doubles what comes of it; keeps values small after each epoch."""

    @contextmanager
    def around_step(self, estimator: Any) -> Iterator[None]:
        scale(estimator, 0.5)
        yield
        scale(estimator, 2.0)

    def epoch_end(self, estimator: Any) -> None:
        estimator.set_values({"body.weight": np.clip(estimator.values()["body.weight"], -0.3, 0.3)})


class Momenta:
    """Raises the momentum from 0, which begins anew, and sets rates."""

    def batch_begin(self, estimator: Any) -> None:
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


def with_parameters() -> Any:
    return two_head_spec(losses={"digit": CE, "size": LossSpec(Scaled(), "size", "size", weight=0.7)})


def with_normalizer() -> Any:
    by = LossSpec(CE, normalize_by=lambda slots: slots["digit"] + 1)
    return two_head_spec(losses={"digit": by, "size": L2})


def momentum(optimizer: str) -> Any:
    return TrainerSpec(".*", optimizer, {"learning_rate": 0.1, "momentum": 0.0})


CASES: dict[str, tuple[Callable[[Path], list[Any]], dict[str, Any]]] = {
    "MixUp": (lambda folder: [MixUp(alpha=0.8)], {}),
    "MixUp of a loss with parameters": (lambda folder: [MixUp(random=3)], {"spec": with_parameters}),
    "CutMix": (lambda folder: [CutMix()], {}),
    "LabelSmoothing": (lambda folder: [LabelSmoothing(0.2)], {"spec": with_normalizer}),
    "both": (lambda folder: [MixUp(), LabelSmoothing(), Penalty()], {"accumulate": 2}),
    "another objective": (lambda folder: [InPlaceOf()], {}),
    "outputs and objective": (lambda folder: [Double(), Penalty(), MixUp()], {"spec": with_parameters}),
    "a constant output": (lambda folder: [Constant()], {}),
    "batch and gradients": (lambda folder: [Halve()], {"trainers": RHYTHMS}),
    "held": (lambda folder: [SkipThird()], {"trainers": RHYTHMS}),
    "averages of batches": (lambda folder: [WeightAveraging("ema", decay=0.8)], {}),
    "averages of epochs": (lambda folder: [WeightAveraging("swa")], {}),
    "finite": (lambda folder: [SkipNonFinite(), TerminateOnNaN()], {}),
    "values": (lambda folder: [Around()], {}),
    "states": (lambda folder: [States(folder)], {"trainers": RHYTHMS}),
    **{f"momenta of {o}": (lambda _: [Momenta()], {"trainers": momentum(o)}) for o in ("sgd", "nag")},
}


@pytest.mark.parametrize("name", CASES)
def test_figures_and_parameters_are_those_of_mxnet(name: str, tmp_path: Path) -> None:
    make, options = CASES[name]
    batches = BATCHES
    if name == "CutMix":
        batches = [(x.reshape((-1, 1, 2, 3)), *labels) for x, *labels in BATCHES]

    def fit(engine: str) -> Any:
        spec = options.get("spec", two_head_spec)()
        estimator = estimator_of("float64", engine, **{**options, "spec": spec})
        seed_everything(5)
        history = estimator.fit(batches, batches, epochs=2, event_handlers=make(tmp_path))
        return dict(history), estimator.values(), estimator.predict(batches)

    assert_engines_agree(fit)


def test_handlers_see_the_gradients_of_the_trainers_that_move() -> None:
    def seen(engine: str) -> list[Any]:
        found = []

        class Look:
            def change_gradients(self, estimator: Any) -> None:
                of = estimator.gradients().items()
                numpy = estimator.arrays.numpy
                found.append({name: {k: numpy(g) for k, (g,) in each.items()} for name, each in of})

        estimator_of("float64", engine, trainers=RHYTHMS).fit(BATCHES, epochs=1, event_handlers=[Look()])
        return found

    for one, other in zip(seen("mxnet"), seen("torch"), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert_close(one[name], other[name])


def test_values_that_a_handler_sets_count_for_predictions_and_exports_at_once(tmp_path: Path) -> None:
    image = BATCHES[0][0]

    class Sets:
        def batch_end(self, estimator: Any) -> None:
            scale(estimator, 0.0)
            assert not estimator.predict(image)["digit"].any()
            ones = {"body.bias": np.ones(8, "float32"), "digit.weight": np.ones((3, 8), "float32")}
            estimator.set_values(ones)
            assert (estimator.predict(image)["digit"] == 8).all()
            estimator.export(tmp_path / str(estimator.state.step), format="torch")

    estimator_of().fit(BATCHES, batches=2, event_handlers=[Sets()])
    for folder in tmp_path.iterdir():
        exported = runpy.run_path(str(folder / "net.py"))["load"]()(torch.from_numpy(image))
        assert (exported["digit"] == 8).all()
    assert len(list(tmp_path.iterdir())) == 2


class Parameter(mx.gluon.HybridBlock):
    """A scale for each of three columns, which it also returns: as it is, and as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = self.params.get("scale", shape=(1, 3), init="ones")

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        return F.broadcast_mul(x, scale), F.identity(scale), F.reshape(scale, (3,))


def test_an_output_that_is_a_parameter_is_that_of_before_the_update() -> None:
    def fit(engine: str) -> list[np.ndarray]:
        seen: list[np.ndarray] = []

        class See:
            def batch_end(self, estimator: Any, pred: Any) -> None:
                seen.extend(estimator.arrays.numpy(array) for arrays in pred.values() for array in arrays)

        net = Parameter()
        net.initialize()
        losses = {"y": LossSpec(mx.gluon.loss.L2Loss(), "y", "y")}
        names = ["y", "scale", "flat"]
        spec = TaskSpec(inputs=["x"], outputs=names, labels=["y"], losses=losses, unused=names[1:])
        batches = [(np.ones((2, 3), "float32"), np.zeros((2, 3), "float32"))] * 4
        MultiEstimator(net, spec, ADAM, engine=engine).fit(batches, epochs=1, event_handlers=[See()])
        return seen

    for one, other in zip(fit("mxnet"), fit("torch"), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5)


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
    estimator = estimator_of("float64")
    handlers = [
        WeightAveraging("ema", decay=0.8),
        CheckpointHandler(tmp_path, monitor="val_loss"),
        EarlyStoppingHandler("val_loss", patience=9, restore_best=True),
    ]
    history = estimator.fit(BATCHES, BATCHES, epochs=3, event_handlers=handlers)
    best = min(history["val_loss"])
    other = estimator_of("float64")
    assert estimator.best_checkpoint is not None
    other.load(tmp_path, "best")
    for each in (estimator, other):
        np.testing.assert_allclose(each.evaluate(BATCHES, event_handlers=[])["loss"], best, rtol=1e-10)


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
