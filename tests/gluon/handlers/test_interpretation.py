"""Confusion matrices and scatter plots: what they count, and what they leave out."""

import random
from typing import Any

import numpy as np
import pytest

from multifit import Interpretation, LabelSpec, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.estimator.run_folder import run_plots
from multifit.handlers.interpretation import MOST_CLASSES, PAIRS
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.metrics import BinaryAccuracy
from tests.common.data import in_batches, two_head_arrays
from tests.common.grids import ONE, two_settings
from tests.common.hand_loop import SILENT
from tests.common.nets import hybridized, two_heads
from tests.common.ranks import run_ranks
from tests.common.specs import BCE, CE, L2, two_head_spec

import mxnet as mx  # isort: skip

LOSSES = mx.gluon.loss
RANDOM = np.random.RandomState(1)


def counts(label: Any, predicted: Any, classes: int) -> np.ndarray:
    """The matrix by its definition, over what is at least 0."""
    pairs = list(zip(np.ravel(label).astype(int), np.ravel(predicted).astype(int)))
    return np.array([[pairs.count((row, column)) for column in range(classes)] for row in range(classes)])


def by_label(pairs: Any) -> list[Any]:
    return sorted(map(tuple, np.asarray(pairs, "float64").tolist()))


def interpreted(estimator: MultiEstimator, data: Any, **options: Any) -> Interpretation:
    found = Interpretation()
    estimator.evaluate(data, event_handlers=[found], **options)
    return found


@two_settings
@pytest.mark.parametrize("size", [20, 7])
def test_it_counts_what_the_net_predicts(devices: Any, hybrid: bool, size: int) -> None:
    """However the samples are cut; in a fit, those of its last validation."""
    arrays = two_head_arrays(20)
    batches, found = in_batches(arrays.values(), size), Interpretation()
    net = hybridized(two_heads("hybrid" if hybrid else "plain"), hybrid)
    estimator = MultiEstimator(net, two_head_spec(), context=devices, initializer=mx.init.Xavier())
    estimator.fit(batches, batches, epochs=2, event_handlers=[*SILENT, found])
    outputs = estimator.predict(batches)
    digit = outputs["digit"].argmax(axis=1)
    pairs = np.stack([arrays["size"].ravel(), outputs["size"].ravel()], axis=1)
    for each in (found, interpreted(estimator, batches)):
        assert (each.confusion["digit"] == counts(arrays["digit"], digit, 3)).all()
        assert by_label(each.scatter["size"]) == by_label(pairs)
        assert list(each.confusion) == ["digit"] and list(each.scatter) == ["size"]


def test_missing_labels_are_left_out() -> None:
    arrays = two_head_arrays(20)
    arrays["digit"][::2], arrays["size"][1::3] = -1, np.nan
    labels = [LabelSpec("digit", missing=-1), LabelSpec("size", missing="nan")]
    estimator = MultiEstimator(two_heads(), two_head_spec(labels=labels), initializer=mx.init.Xavier())
    found = interpreted(estimator, in_batches(arrays.values()))
    outputs = estimator.predict(in_batches(arrays.values()))
    digit = outputs["digit"].argmax(axis=1)
    assert (found.confusion["digit"] == counts(arrays["digit"], digit, 3)).all()
    assert found.confusion["digit"].sum() == 10 and len(found.scatter["size"]) == 13
    assert np.isfinite(found.scatter["size"]).all()


def as_it_is(net: Any, slots: Any) -> Any:
    return slots["data"] * 1


def of_outputs(spec: TaskSpec, *batches: Any) -> Interpretation:
    """Interpret what batches hold as the net's output."""
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    return interpreted(MultiEstimator(net, spec), list(batches))


def spec_of(loss: Any, *labels: Any, **options: Any) -> TaskSpec:
    names = [getattr(label, "name", label) for label in labels]
    declared = {"losses": {"l": LossSpec(loss, "y", names)}} if loss else options
    return TaskSpec(outputs=["y"], labels=labels, forward=as_it_is, **declared)


SCORES = RANDOM.randn(6, 4, 5).astype("float32")  # of 4 classes for 5 tokens or pixels, or of 5 for 4
TOKENS = RANDOM.randint(0, 5, (6, 4)).astype("float32")
PIXELS = np.where(RANDOM.rand(6, 5) < 0.3, 255, RANDOM.randint(0, 4, (6, 5))).astype("float32")
LENGTHS = np.array([1, 4, 0, 2, 4, 3], "float32")
WEIGHTS = np.array([[1], [0], [2], [0], [0], [1]], "float32")
FLAGS = RANDOM.randint(0, 2, (6, 1)).astype("float32")
VALID = np.arange(4) < LENGTHS[:, None]
BEST, BEST_FIRST = SCORES.argmax(axis=2), SCORES.argmax(axis=1)
ONE_COLUMN = SCORES[:, :1, 0]
KEPT = PIXELS != 255

# The spec, what a batch holds, and the labels and predictions that count.
CASES: dict[str, Any] = {
    "tokens": (spec_of(SequenceCELoss(), "label", "length"), (SCORES, TOKENS, LENGTHS), 5,
               TOKENS[VALID], BEST[VALID]),
    "pixels that are ignored": (spec_of(SegmentationCELoss(255), "label"), (SCORES, PIXELS), 4,
                                PIXELS[KEPT], BEST_FIRST[KEPT]),
    "ignored by the LabelSpec": (
        spec_of(LOSSES.SoftmaxCrossEntropyLoss(axis=1), LabelSpec("label", ignore=3), "weight"),
        (SCORES, PIXELS % 4, (PIXELS % 4 != 3)[:, :, None].transpose((0, 2, 1)).astype("float32")), 4,
        (PIXELS % 4)[PIXELS % 4 != 3], BEST_FIRST[PIXELS % 4 != 3]),
    "weights of 0": (spec_of(CE, "label", "weight"), (SCORES[:, 0], TOKENS[:, 0], WEIGHTS), 5,
                     TOKENS[[0, 2, 5], 0], SCORES[[0, 2, 5], 0].argmax(axis=1)),
    "scores of two classes": (spec_of(BCE, "label"), (ONE_COLUMN, FLAGS), 2, FLAGS, ONE_COLUMN > 0),
    "probabilities of two classes": (
        spec_of(LOSSES.SigmoidBCELoss(from_sigmoid=True), "label"), (abs(np.tanh(ONE_COLUMN)), FLAGS), 2,
        FLAGS, abs(np.tanh(ONE_COLUMN)) > 0.5),
    "accuracy": (spec_of(None, "label", metrics={"m": MetricSpec("accuracy", "y", "label")}),
                 (SCORES, PIXELS % 4), 4, PIXELS % 4, BEST_FIRST),
    "binary accuracy": (spec_of(None, "label", metrics={"m": MetricSpec(BinaryAccuracy(0.2), "y", "label")}),
                        (ONE_COLUMN, FLAGS), 2, FLAGS, ONE_COLUMN > 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_classes_by_losses_and_metrics(name: str) -> None:
    spec, batch, classes, label, predicted = CASES[name]
    found = of_outputs(spec, batch)
    assert (found.confusion["y"] == counts(label, predicted, classes)).all() and found.scatter == {}


@pytest.mark.parametrize("kind", ["mae", "rmse", "mse", LOSSES.L1Loss(), LOSSES.HuberLoss()])
def test_numbers_by_losses_and_metrics(kind: Any) -> None:
    metrics = {"m": MetricSpec(kind, "y", "label")} if isinstance(kind, str) else None
    found = of_outputs(spec_of(None if metrics else kind, "label", metrics=metrics), (SCORES, SCORES + 1))
    assert len(found.scatter["y"]) == SCORES.size and found.confusion == {}
    assert np.allclose(found.scatter["y"][:, 0], found.scatter["y"][:, 1] + 1)


def test_batches_of_more_and_more_classes() -> None:
    found = of_outputs(spec_of(CE, "label"), (SCORES[:, 0, :3], FLAGS[:, 0]), (SCORES[:, 0], TOKENS[:, 0]))
    first = np.pad(counts(FLAGS, SCORES[:, 0, :3].argmax(axis=1), 3), [(0, 2)] * 2)
    assert (found.confusion["y"] == first + counts(TOKENS[:, 0], BEST[:, 0], 5)).all()


def test_of_many_numbers_as_many_are_drawn_as_can_be_seen() -> None:
    """Without a change of the random states; all batches have the same chance."""
    x = np.arange(9000, dtype="float32").reshape(9, 1000)
    np.random.seed(2)
    random.seed(2)
    expected = np.random.RandomState(2).rand(), random.Random(2).random()
    pairs = of_outputs(spec_of(L2, "label"), *((each[:, None], -each[:, None]) for each in x)).scatter["y"]
    assert pairs.shape == (PAIRS, 2) and (pairs[:, 0] == -pairs[:, 1]).all()
    assert len({*pairs[:, 1]}) == PAIRS and 4300 < pairs[:, 1].mean() < 4700
    assert (np.random.rand(), random.random()) == expected


CLASS_INDICES = spec_of(None, "label", metrics={"m": MetricSpec("accuracy", "y", "label")}), (TOKENS, TOKENS)
TOO_MANY = spec_of(CE, "label"), (np.zeros((2, MOST_CLASSES + 1), "float32"), np.zeros(2, "float32"))


@pytest.mark.parametrize(("spec", "batch"), [TOO_MANY, CLASS_INDICES], ids=["classes", "class indices"])
def test_what_is_no_matrix_is_left_out(spec: TaskSpec, batch: Any) -> None:
    found = of_outputs(spec, batch)
    assert found.confusion == found.scatter == found.plots() == {}


def test_a_loader_for_each_task() -> None:
    arrays = two_head_arrays(20)
    spec = two_head_spec()
    estimator = MultiEstimator(two_heads("hybrid"), spec, initializer=mx.init.Xavier())
    data = {name: in_batches([arrays["image"], arrays[name]]) for name in ("digit", "size")}
    found = interpreted(estimator, data)
    whole = interpreted(estimator, in_batches(arrays.values()))
    assert (found.confusion["digit"] == whole.confusion["digit"]).all()
    assert by_label(found.scatter["size"]) == by_label(whole.scatter["size"])


def test_several_processes_count_together() -> None:
    batches = in_batches(two_head_arrays(21).values())

    def found(world: Any) -> Any:
        net = two_heads("hybrid")
        net.initialize(mx.init.One())
        return interpreted(MultiEstimator(net, two_head_spec(), world=world), batches)

    alone, *ranks = found(MultiEstimator(two_heads(), two_head_spec()).world), *run_ranks(2, found)
    for each in ranks:
        assert (each.confusion["digit"] == alone.confusion["digit"]).all()
        np.testing.assert_allclose(by_label(each.scatter["size"]), by_label(alone.scatter["size"]), rtol=1e-5)


def test_what_cannot_be_compared_is_refused() -> None:
    spec = spec_of(LOSSES.SoftmaxCrossEntropyLoss(sparse_label=False), "label")
    with pytest.raises(SpecError, match="Interpretation: no output has a loss or a metric by which"):
        of_outputs(spec, (TOKENS, TOKENS))
    net = mx.gluon.nn.Dense(1)
    assert run_plots(MultiEstimator(net, spec), [(TOKENS, TOKENS)]) == {}
    for data in (None, iter([(TOKENS, TOKENS)])):  # which cannot be read again
        assert run_plots(MultiEstimator(net, L2), data) == {}


def test_the_plots_of_a_run_change_nothing_else() -> None:
    arrays = two_head_arrays(20)
    losses = {"a/digit": LossSpec(CE, "a/digit", "digit"), "size": LossSpec(L2, "size", "size")}
    spec = two_head_spec(outputs=["a/digit", "size"], losses=losses, metrics=None)
    estimator = MultiEstimator(two_heads("hybrid"), spec, context=ONE, initializer=mx.init.Xavier())
    shuffled = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(*arrays.values()), 8, shuffle=True)
    history = estimator.fit(shuffled, shuffled, epochs=1, event_handlers=SILENT)

    def state() -> Any:
        return history.to_json(), estimator.state.step, repr(np.random.get_state()), random.getstate()

    before = state()
    assert list(run_plots(estimator, shuffled)) == ["confusion_a_digit", "scatter_size"]
    assert state() == before


def test_names_of_classes() -> None:
    found = of_outputs(spec_of(CE, "label"), (SCORES[:, 0], TOKENS[:, 0]))
    names = ["cat", "dog", "$x$", "a_b", "ox"]
    axes = found.plots({"y": names})["confusion_y"].axes[0]
    assert [each.get_text() for each in axes.get_xticklabels()] == names
    with pytest.raises(ValueError, match='class_names: "y" has 2 names and 5 classes; there are matrices of'):
        found.plots({"y": ["a", "b"]})
    with pytest.raises(ValueError, match='class_names: "z" has 2 names and 0 classes'):
        found.plots({"z": ["a", "b"]})
