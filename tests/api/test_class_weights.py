"""Class weights from a first pass over the labels, and weights together with handlers and other options."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from multifit import DataError, Every, LabelSpec, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.handlers import CheckpointHandler, LabelSmoothing, MixUp
from multifit.losses import SegmentationCELoss, SequenceCELoss
from multifit.spec.plan import stage_plan
from tests.common.compare import assert_unchanged, snapshot
from tests.common.nets import Heads, hybridized
from tests.common.resuming import assert_resumes_bit_for_bit
from tests.common.specs import CE
from tests.common.weighted_losses import Shaped

READ = "reading train_data once, to count the classes of "
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(24, 3).astype("float32"), RANDOM.choice(4, 24, p=[0.5, 0.3, 0, 0.2]).astype("float32")
BALANCED = [24 / (3 * count) if count else 1.0 for count in np.bincount(Y.astype(int))]
SGD = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})


def loader(**options: Any) -> gluon.data.DataLoader:
    return gluon.data.DataLoader(gluon.data.ArrayDataset(X, Y), 8, **options)


def estimator(weights: Any, loss: Any = CE, *labels: Any, shape: Any = (4,), **options: Any) -> Any:
    """Return an estimator whose net of ones has an output of this shape, and whose loss is weighted."""
    net = hybridized(Shaped(shape))
    net.initialize(mx.init.One())
    labels, unused = labels or ("y",), options.pop("unused", ())
    options = {"labels": [getattr(label, "name", label) for label in labels], **options}
    losses = {"l": LossSpec(loss, "o", class_weights=weights, **options)}
    return MultiEstimator(net, TaskSpec(outputs="o", labels=labels, losses=losses, unused=unused), SGD)


def assert_close(one: Any, other: Any) -> None:
    for value, expected in zip(snapshot(one.net).values(), snapshot(other.net).values()):
        np.testing.assert_allclose(value, expected, rtol=1e-5)


class Iterated:
    """A loader without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter([[X, Y]])


DATA: dict[str, Callable[[], Any]] = {
    "a list": lambda: [[X[:8], Y[:8]], [X[8:], Y[8:]]],
    "a loader that shuffles": lambda: loader(shuffle=True),
    "a loader that keeps the rest": lambda: gluon.data.DataLoader(
        gluon.data.ArrayDataset(X, Y),
        batch_sampler=gluon.data.BatchSampler(gluon.data.RandomSampler(24), 9, "rollover"),
    ),
    "a DataIter": lambda: mx.io.NDArrayIter(X, Y, 8),
    "a loader without a length": Iterated,
}


@pytest.mark.parametrize("name", DATA)
def test_balanced_weights_are_those_of_the_formula(name: str, log: Callable[[], list[str]]) -> None:
    """The pass before the first epoch changes no order; a loader that keeps the rest reads some labels."""
    fits = []
    for weights in ("balanced", BALANCED):
        np.random.seed(5)
        fitted = estimator(weights)
        history = fitted.fit(DATA[name](), DATA["a list"](), epochs=2)
        fits.append((snapshot(fitted.net), dict(history)))
        if name == "a loader that keeps the rest":
            break
    lines = [line for line in log() if "class" in line]
    assert lines[0] == READ + 'losses["l"]'
    if len(fits) == 2:
        shown = ", ".join(f"{key}: {weight:.4g}" for key, weight in enumerate(BALANCED))
        assert lines == [READ + 'losses["l"]', f'losses["l"]: class weights {shown}']
        np.testing.assert_equal(*fits)


IGNORED: dict[str, tuple[Any, ...]] = {
    "missing": (CE, [LabelSpec("y", missing=-1)], [[0, 1, 1, -1]], (2,), {}),
    "missing by a mask": (
        CE, [LabelSpec("y", missing="m"), "m"], [[0, 1, 1, 1], [1, 1, 1, 0]], (2,), {"labels": "y"}),
    "ignored by the loss": (SegmentationCELoss(), ["y"], [[[[0, 1]], [[1, -1]]]], (2, 1, 2), {}),
    "of weight 0": (gluon.loss.SoftmaxCELoss(), [LabelSpec("y", ignore=-1), "w"],
        [[[0, 1], [1, -1]], [[1, 2], [1, 0]]], (2, 2), {"sample_weight": "w", "labels": "y"}),
    "padding": (SequenceCELoss(), ["y", "n"], [[[0, 1], [1, 0]], [2, 1]], (2, 2), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_what_does_not_count(name: str, log: Callable[[], list[str]]) -> None:
    loss, labels, slots, shape, options = IGNORED[name]
    fitted = estimator("balanced", loss, *labels, shape=shape, **options)
    columns = [np.array(slot, "float32") for slot in slots]
    fitted.fit([[X[: len(columns[0])], *columns]], epochs=1)
    assert log()[2] == 'losses["l"]: class weights 0: 1.5, 1: 0.75'


def test_loaders_of_several_tasks(log: Callable[[], list[str]]) -> None:
    losses = {name: LossSpec(CE, name, name, class_weights="balanced") for name in "ab"}
    spec = TaskSpec(outputs=["a", "b"], labels=["a", "b"], losses=losses)
    net = hybridized(Heads(a=4, b=4))
    MultiEstimator(net, spec).fit({"a": loader(), "b": [[X, 3 - Y]]}, epochs=1)
    assert 'losses["a"]: class weights 0: 0.7273, 1: 0.8889, 2: 1, 3: 2' in log()
    assert 'losses["b"]: class weights 0: 2, 1: 1, 2: 0.8889, 3: 0.7273' in log()


def test_a_resumed_run_does_not_count_again(tmp_path: Path, log: Callable[[], list[str]]) -> None:
    def run(folder: Path, *handlers: Any, **options: Any) -> MultiEstimator:
        np.random.seed(3)
        fitted = estimator("balanced")
        saved = CheckpointHandler(folder, Every(2, "batch"), seed=7)
        fitted.fit(loader(), epochs=2, event_handlers=[saved, *handlers], **options)
        return fitted

    assert_resumes_bit_for_bit(run, tmp_path, 3, 5)
    assert sum(line.startswith(READ) for line in log()) == 3  # none by the two that resumed
    with pytest.raises(SpecError, match=r'losses\["l"\].class_weights: '):
        estimator(BALANCED).fit(loader(), epochs=2, resume=tmp_path / "through")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lambda: iter([[X, Y]]), "list_iterator can be read only once"),
        (Iterated, "Iterated does not know its length, and may not end"),
    ],
)
def test_data_that_cannot_be_counted(data: Callable[[], Any], why: str) -> None:
    fitted = estimator("balanced")
    before = snapshot(fitted.net)
    start = 'losses["l"]: class_weights="balanced" are counted in a pass over train_data, but a '
    way_out = "; give the weights as numbers, or a loader with a __len__ that can be read again"
    with pytest.raises(DataError, match=re.escape(start + why + way_out)):
        fitted.fit(data(), batches=1)
    assert_unchanged(fitted.net, before)


def test_before_the_first_fit_they_are_one(log: Callable[[], list[str]]) -> None:
    assert estimator("balanced").evaluate(loader()) == estimator([1] * 4).evaluate(loader())
    plan = estimator("balanced").check(loader())
    line = 'losses["l"]: class_weights="balanced" are 1 until fit counts the labels'
    assert log().count(line) == 2 and line in plan.notices
    assert "class weights 'balanced'" in " ".join(str(plan).split())


def test_sample_weights_of_another_size() -> None:
    weighted = estimator([1] * 4, CE, "y", "w", labels="y", sample_weight="w")
    match = 'losses["l"]: sample_weight "w" is (8, 2) float32, and the label "y" (8,) float32; give'
    with pytest.raises(DataError, match=re.escape(match)):
        weighted.fit([[X[:8], Y[:8], np.ones((8, 2), "float32")]], epochs=1)


def test_samples_along_another_axis() -> None:
    """A weight for each sample, with the samples along the second axis."""
    weights = np.array([[2.0, 0.5, 1.0]], "float32")
    labels, x = np.array([[0, 1, 1], [1, 1, 0]], "float32"), RANDOM.randn(2, 3, 3).astype("float32")
    loss = gluon.loss.SoftmaxCELoss(batch_axis=1)
    net = gluon.nn.Dense(2, flatten=False)
    net.initialize(mx.init.Normal(1.0))
    spec = LossSpec(loss, "o", "y", sample_weight="w", class_weights=[1, 3])
    task = TaskSpec(outputs="o", labels=["y", "w"], losses={"l": spec})
    figures = MultiEstimator(net, task).evaluate([[x, labels, weights]], batch_axis=1)
    values = -mx.nd.pick(net(mx.nd.array(x)).log_softmax(), mx.nd.array(labels)).asnumpy()
    expected = (values * weights * np.where(labels == 1, 3, 1)).mean(axis=0).mean()
    np.testing.assert_allclose(figures["l"], expected, rtol=1e-5)


class Swaps(np.random.RandomState):
    """Draws a share of 0.7, and the reversed order."""

    def beta(self, a: Any, b: Any, size: Any = None) -> float:
        return 0.7

    def permutation(self, x: Any) -> Any:
        return np.arange(x)[::-1]


@pytest.mark.parametrize("handler", [MixUp(random=Swaps()), LabelSmoothing(0.25)], ids=["mixup", "smoothing"])
def test_handlers_that_blend_losses_keep_the_weights(handler: Any) -> None:
    """One step equals that with the weights of each sample's loss written into the loss."""
    weights = [1.0, 2.0, 1.0, 5.0]
    column = np.array(weights)[Y[:8].astype(int)].astype("float32")
    loss = gluon.loss.SoftmaxCELoss()
    by_hand = estimator(None, loss, "y", "w")  # Gluon's loss takes them, permuted with the labels
    weighted = estimator(weights, loss, "y", "w", labels="y", unused=["w"])
    for fitted in (by_hand, weighted):
        fitted.fit([[X[:8], Y[:8], column[:, None]]], epochs=2, event_handlers=[handler])
    assert_close(weighted, by_hand)


@pytest.mark.parametrize(
    ("loss", "shape", "names"),
    [(SegmentationCELoss(), (4, 1, 2), ["y"]), (SequenceCELoss(), (2, 4), ["y", "n"])],
    ids=["pixels", "tokens"],
)
def test_smoothed_labels_of_single_values(loss: Any, shape: Any, names: list[str]) -> None:
    """Weights of values are those of the samples if all values of a sample have the same class."""
    weights = [1, 2, 1, 5]
    labels, lengths = np.repeat(Y[:8, None], 2, axis=1), np.array([2, 1] * 4, "float32")
    columns = [labels[:, None]] if names == ["y"] else [labels, lengths]
    columns.append(np.array(weights, "float32")[Y[:8].astype(int)])
    by_class = estimator(weights, loss, *names, "w", shape=shape, labels=names, unused=["w"])
    by_sample = estimator(None, loss, *names, "w", shape=shape, labels=names, sample_weight="w")
    for fitted in (by_class, by_sample):
        fitted.fit([[X[:8], *columns]], epochs=2, event_handlers=LabelSmoothing(0.3))
    assert_close(by_class, by_sample)


def test_a_combined_spec_weighs_by_its_own_slots() -> None:
    loss = LossSpec(CE, "o", "y", sample_weight="w", class_weights=[1, 2, 3, 4])
    part = TaskSpec(outputs="o", labels=["y", "w"], losses={"l": loss})
    combined = TaskSpec.combine(shared=["data", "y"], one=part, other=part)
    assert [term.spec.sample_weight for term in combined.terms] == ["one/w", "other/w"]
    assert [term.weights.name for term in combined.terms] == ["weight.one/l", "weight.other/l"]
    plan = stage_plan(combined)
    assert ("label", "one/w", "", "weighs one/l") in plan.rows
    assert {link.how for link in plan.links} == {"feeds", "weighs"}
