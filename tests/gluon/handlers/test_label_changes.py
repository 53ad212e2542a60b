"""MixUp, CutMix and LabelSmoothing: what they mix and smooth, as in loops by hand, and what they refuse."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multifit import CutMix, LabelSmoothing, LabelSpec, LossSpec, MixUp, MultiEstimator, SpecError, TaskSpec
from multifit.distributed import ALONE
from multifit.engines.scale import Scale
from multifit.gluon.handler_arrays import GluonArrays
from multifit.losses import SegmentationCELoss, SequenceCELoss
from tests.common.grids import ONE, TWO
from tests.common.nets import mlp
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

from .training import DATA, HEIGHT, IMAGES, SOME, WIDTH, On, assert_close, by_hand, fit

INPUTS = IMAGES[0][0][0].size
Softmax = gluon.loss.SoftmaxCELoss
DENSE = Softmax(sparse_label=False)


def spec_of(losses: dict[str, LossSpec], **options: Any) -> TaskSpec:
    return TaskSpec(**{"outputs": ["y"], "labels": ["label"], "losses": losses, **options})


def of_images(handlers: Any, devices: Any = ONE, hybrid: bool = True, **options: Any) -> MultiEstimator:
    net = mlp(3, devices, hybrid, inputs=INPUTS)
    return fit(handlers, devices, **{"net": net, "data": IMAGES, **options})


# ---- mixtures ----------------------------------------------------------------------------------------------


def shuffled(random: Any, size: int, shares: int) -> np.ndarray:
    """Draw an order of the samples of each device."""
    share = size // shares
    return np.concatenate([random.permutation(share) + i * share for i in range(shares)])


def plain(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
    return kept * CE(out, y) + (1 - kept) * CE(out, permuted)


def of_present(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
    own, other = ((label >= 0) * CE(out, label.relu()) for label in (y, permuted))
    return (kept * own + (1 - kept) * other) * len(y) / (y >= 0).sum()


def mixed(random: Any, loss: Any = plain, shares: int = 1, alpha: float = 0.4) -> Callable[..., Any]:
    """The objective of mixup: ``loss(output, label, permuted label, x, kept)`` for each sample."""

    def objective(net: Any, x: Any, y: Any) -> Any:
        kept, order = random.beta(alpha, alpha), mx.nd.array(shuffled(random, len(x), shares))
        x = kept * x + (1 - kept) * x[order]
        return loss(net(x), y, y[order], x, kept)

    return objective


def cut(random: Any, loss: Any = plain, shares: int = 1, alpha: float = 1.0, seen: Any = None) -> Any:
    """The objective of CutMix: a box is drawn as in the paper, and the share outside of it is kept."""

    def objective(net: Any, x: Any, y: Any) -> Any:
        side, ranges = np.sqrt(1 - random.beta(alpha, alpha)), []
        for at, length in zip(random.uniform(size=2), (HEIGHT, WIDTH)):
            centre, half = int(at * length), int(side * length / 2)
            ranges.append(np.clip([centre - half, centre + half], 0, length))
        (top, bottom), (left, right) = ranges
        kept = 1 - (bottom - top) * (right - left) / (HEIGHT * WIDTH)
        order, images = shuffled(random, len(x), shares), x.asnumpy()
        images[:, :, top:bottom, left:right] = x.asnumpy()[order][:, :, top:bottom, left:right]
        if seen is not None:
            seen.append(kept)
        return loss(net(mx.nd.array(images)), y, y[mx.nd.array(order)], x, kept)

    return objective


@pytest.mark.parametrize(("devices", "hybrid"), [(ONE, False), (TWO, True)])
def test_mixup_equals_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    """With a generator of its own, or with NumPy's."""
    ours = fit(MixUp("data", "label", random=7), devices, hybrid)
    assert_close(ours, by_hand(mixed(np.random.RandomState(7), plain, len(devices))))
    np.random.seed(11)
    ours = fit(MixUp(alpha=2.0), devices, hybrid)
    assert_close(ours, by_hand(mixed(np.random.RandomState(11), plain, len(devices), alpha=2.0)))


@pytest.mark.parametrize(
    ("alpha", "seed", "devices", "hybrid"),
    [(1.0, 7, ONE, False), (2.0, 7, TWO, True), (1e-3, 3, ONE, True)],
    ids=["one device", "two devices, hybridized", "boxes without pixels"],
)
def test_cutmix_equals_a_hand_written_loop(alpha: float, seed: int, devices: Any, hybrid: bool) -> None:
    ours = of_images(CutMix("data", "label", alpha=alpha, random=seed), devices, hybrid)
    seen: list[float] = []
    objective = cut(np.random.RandomState(seed), plain, len(devices), alpha, seen)
    assert_close(ours, by_hand(objective, IMAGES, INPUTS))
    assert len(set(seen)) > (3 if alpha >= 1 else 1)  # boxes of several sizes were pasted
    assert (1.0 in seen) == (alpha < 1)


def test_missing_labels_are_mixed_with_their_samples() -> None:
    """What is present is permuted once, whoever reads it."""
    losses = {str(i): LossSpec(CE, "y", "label", weight=0.5) for i in range(2)}
    spec = spec_of(losses, labels=[LabelSpec("label", missing=-1)])
    ours = fit(MixUp(random=7), spec=spec, data=SOME)
    assert_close(ours, by_hand(mixed(np.random.RandomState(7), of_present), SOME))
    images = [(x, y) for (x, _), (_, y) in zip(IMAGES, SOME)]
    ours = of_images(CutMix(random=7), spec=spec, data=images)
    assert_close(ours, by_hand(cut(np.random.RandomState(7), of_present), images, INPUTS))


@pytest.mark.parametrize("by", [None, "weight"])
def test_one_loss_is_mixed_among_others(by: str | None) -> None:
    """Weighted, normalised by a slot or by the samples; another loss keeps its own labels."""

    def first(out: Any, label: Any) -> Any:
        return (CE(out, label).mean() if by is None else CE(out, label),)  # a part; a scalar counts as mean

    def second(out: Any, label: Any, data: Any) -> Any:
        return CE(out, label) + (data**2).mean()

    losses = {
        "mixed": LossSpec(first, "y", "label", 0.7, returns=["ce"], normalize_by=by),
        "own": LossSpec(second, "y", ["label", "data"]),
    }
    spec = spec_of(
        losses, labels=["label", "weight"], unused=["weight"] if by is None else (),
        batch_fn=lambda batch: {"data": batch[0], "label": batch[1], "weight": batch[1] * 0 + 2},
    )  # fmt: skip
    ours = fit(MixUp("data", "label", loss="mixed", random=7), spec=spec)

    def loss(out: Any, y: Any, *rest: Any) -> Any:
        return 0.7 / (1 if by is None else 2) * plain(out, y, *rest) + CE(out, y)

    assert_close(ours, by_hand(mixed(np.random.RandomState(7), loss)))


def test_figures_compare_with_the_samples_own_labels() -> None:
    losses: list[float] = []

    def batch_end(estimator: Any, pred: Any, label: Any) -> None:
        losses.append(float(CE(pred[0], label[0]).mean().asscalar()))

    history = fit([MixUp(random=3), On(batch_end=batch_end)], epochs=1).history
    assert history["train_ce"][0] == pytest.approx(np.mean(losses), rel=1e-5)


def test_inputs_that_are_labels_too_are_not_permuted() -> None:
    """An autoencoder with a class: the picture as a label is the mixed one."""
    losses = {
        "again": LossSpec(lambda out, x: (out.mean(axis=1) - x.mean(axis=1)) ** 2, "y", "data"),
        "ce": LossSpec(CE, "y", "label"),
    }
    handler = MixUp(random=1)
    fit(handler, losses=losses, epochs=1)
    assert [term.key for term in handler._blend.terms] == ["ce"]


def test_its_own_generator_is_copied_and_continues_from_a_checkpoint() -> None:
    first, second, third = MixUp(random=4), MixUp(random=np.random.RandomState(9)), MixUp()
    assert copy.deepcopy(first)._random is not first._random
    assert copy.deepcopy(third)._random is np.random
    first._random.beta(1, 1)
    second.load_state_dict(first.state_dict())
    assert first._random.beta(1, 1) == second._random.beta(1, 1)
    third.load_state_dict(first.state_dict())  # it draws from NumPy's, which is restored by itself
    assert third.state_dict() == {"random": None}
    first.load_state_dict(third.state_dict())


# ---- smoothed labels ---------------------------------------------------------------------------------------


def smoothed(label: Any, epsilon: float = 0.1, classes: int = 3) -> Any:
    return mx.nd.one_hot(label, classes) * (1 - epsilon) + epsilon / classes


@pytest.mark.parametrize(("devices", "hybrid"), [(ONE, False), (TWO, True)])
def test_smoothing_equals_a_hand_written_loop(devices: Any, hybrid: bool) -> None:
    """One loss among others, or all."""
    ours = fit(LabelSmoothing(), devices, hybrid)
    assert_close(ours, by_hand(lambda net, x, y: DENSE(net(x), smoothed(y))))
    losses = {
        "smooth": LossSpec(CE, "y", "label", 0.5),
        "sharp": LossSpec(Softmax(), "y", "label"),
        "other": LossSpec(lambda out: (out**2).mean(axis=1), "y"),
    }

    def objective(net: Any, x: Any, y: Any) -> Any:
        out = net(x)
        return 0.5 * DENSE(out, smoothed(y, 0.2)) + CE(out, y) + (out**2).mean(axis=1)

    ours = fit(LabelSmoothing(0.2, "smooth"), devices, hybrid, losses=losses)
    assert_close(ours, by_hand(objective))


def test_labels_of_mixed_samples_are_smoothed() -> None:
    """The mixture of labels is smoothed, in whatever order the handlers are given."""

    def loss(out: Any, y: Any, permuted: Any, x: Any, kept: float) -> Any:
        return DENSE(out, kept * smoothed(y, 0.3) + (1 - kept) * smoothed(permuted, 0.3))

    ours = fit([LabelSmoothing(0.3), MixUp(random=5)])
    assert_close(ours, by_hand(mixed(np.random.RandomState(5), loss)))


def objective_of(loss: Any, epsilon: float, logits: Any, label: Any, *more: Any) -> float:
    """Return the smoothed objective of a loss of these arguments, alone in its spec."""
    slots = dict(zip(["label", "more"], [label, *more]))
    spec = spec_of({"ce": LossSpec(loss, "y", list(slots))}, labels=list(slots))
    handler = LabelSmoothing(epsilon)
    estimator = SimpleNamespace(spec=spec, batch_axis=0, state=None, arrays=GluonArrays({}, ALONE))
    handler.train_begin(estimator)
    handler.batch_begin(estimator)
    handler.change_batch(estimator, slots)
    values, size = loss(logits, label, *more), len(logits)
    labels = {name: [array] for name, array in slots.items()}
    scale = Scale({"ce": 1.0}, {"ce": size}, {"ce": size})
    mean = [values.sum().reshape((1,)) / size]
    objectives = handler.change_objective(estimator, mean, {"y": [logits]}, labels, {"ce": [values]}, scale)
    return float(mx.nd.add_n(*objectives).asscalar())


@pytest.mark.parametrize(
    ("loss", "dense", "shape", "more"),
    [
        (CE, DENSE, (4, 5), [mx.nd.array([[1], [2], [0], [5]])]),
        (Softmax(weight=3), Softmax(weight=3, sparse_label=False), (4, 5), []),
        (Softmax(axis=1), Softmax(axis=1, sparse_label=False), (4, 5, 2, 3), []),
        (Softmax(from_logits=True), Softmax(from_logits=True, sparse_label=False), (4, 5), []),
        (SegmentationCELoss(None), Softmax(axis=1, sparse_label=False), (4, 5, 2, 3), []),
    ],
)
def test_each_loss_equals_the_dense_loss_of_smoothed_labels(loss, dense, shape, more) -> None:
    logits = mx.nd.array(np.random.randn(*shape))
    label = mx.nd.array(np.random.randint(0, 5, (shape[0], *shape[2:])).astype("float32"))
    target = smoothed(label, 0.2, 5)
    target = target if len(shape) == 2 else target.transpose((0, 3, 1, 2))
    expected = float(dense(logits, target, *more).mean().asscalar())
    assert objective_of(loss, 0.2, logits, label, *more) == pytest.approx(expected, rel=1e-5)


def test_ignored_labels_and_padding_have_no_effect() -> None:
    logits = np.random.randn(2, 3, 2, 2).astype("float32")
    label = np.array([[[0, -1], [2, 1]], [[-1, -1], [-1, -1]]], "float32")
    pixels = -mx.nd.log_softmax(mx.nd.array(logits), axis=1).asnumpy()
    sharp = np.take_along_axis(pixels, np.maximum(label, 0).astype(int)[:, None], 1)[:, 0]
    means = np.where(label >= 0, 0.7 * sharp + 0.3 * pixels.mean(axis=1), 0)
    expected = (means.sum((1, 2)) / np.maximum((label >= 0).sum((1, 2)), 1)).mean()
    objective = objective_of(SegmentationCELoss(), 0.3, mx.nd.array(logits), mx.nd.array(label))
    assert objective == pytest.approx(expected, rel=1e-5)

    logits = np.random.randn(2, 3, 4).astype("float32")  # (N, T, V)
    label, length = np.array([[0, 1, 0], [3, 2, 1]], "float32"), np.array([2, 3], "float32")
    tokens = -mx.nd.log_softmax(mx.nd.array(logits)).asnumpy()
    means = 0.9 * np.take_along_axis(tokens, label.astype(int)[..., None], 2)[..., 0] + 0.1 * tokens.mean(2)
    expected = (means.sum() - means[0, 2]) / 2
    logits[0, 2] = np.nan
    for axis, scores in ((-1, logits), (1, logits.transpose(0, 2, 1))):
        objective = objective_of(SequenceCELoss(axis=axis), 0.1, *map(mx.nd.array, (scores, label, length)))
        assert objective == pytest.approx(expected, rel=1e-5)


class AddBias(gluon.nn.HybridBlock):
    """Adds a bias to a sample's scores; its change is the sum of the scores' gradients."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = self.params.get("bias", shape=shape, init="zeros")

    def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
        return F.broadcast_add(x, F.expand_dims(bias, axis=0))


WEIGHTS, LENGTHS = np.array([[1], [2], [0.5], [1]], "float32"), np.array([3, 2, 1, 3], "float32")


@pytest.mark.parametrize(
    ("loss", "shape", "classes", "more", "mark"),
    [
        (CE, (5,), 0, [], -7),
        (CE, (5,), 0, [WEIGHTS], "nan"),
        (Softmax(weight=3, axis=1), (5, 3, 2), 0, [], "nan"),
        (Softmax(), (3, 2, 5), 2, [], -7),
        (SegmentationCELoss(None), (5, 3, 2), 0, [], "nan"),
        (SegmentationCELoss(), (5, 3, 2), 0, [WEIGHTS[:, 0]], -7),
        (SequenceCELoss(), (3, 5), 1, [LENGTHS], "nan"),
        (SequenceCELoss(axis=1), (5, 3), 0, [LENGTHS, WEIGHTS[:, 0]], -7),
    ],
)
def test_samples_without_a_label_are_left_out(loss, shape, classes, more, mark) -> None:
    """They change as little as if the batch did not hold them."""
    random = np.random.RandomState(0)
    scores = random.randn(4, *shape).astype("float32")
    label = random.randint(0, 5, (4, *np.delete(shape, classes))).astype("float32")
    label[[1, 3]] = float(mark)
    names = ["more", "weight"][: len(more)]

    def change(rows: Any, slot: Any) -> Any:
        net = AddBias(*shape)
        net.initialize()
        spec = spec_of({"ce": LossSpec(loss, "y", ["label", *names])}, labels=[slot, *names])
        batch = [array[rows] for array in (scores, label, *more)]
        return fit(LabelSmoothing(0.5), net=net, spec=spec, data=[batch], epochs=1)

    assert_close(change([0, 1, 2, 3], LabelSpec("label", missing=mark)), change([0, 2], "label"))


# ---- what is refused ---------------------------------------------------------------------------------------


def sum_of(net: Any, slots: Any) -> Any:
    return net(slots["near"].reshape((6, -1)))


OF_CE = {"ce": LossSpec(CE, "y", "label")}
NEAR = spec_of(OF_CE, inputs=["near", "far"], forward=sum_of)
SIZES = {"spec": NEAR, "data": [(x, x[:, :, ::2, ::2], y) for x, y in IMAGES], "hybrid": False}
MASKS = {
    "net": gluon.nn.Conv2D(1, 1), "data": [(x, x[:, :1]) for x, _ in IMAGES],
    "spec": spec_of({"mask": LossSpec(L2, "y", "mask")}, labels=["mask"]),
}  # fmt: skip


def of_form(change: Callable[[Any], Any], data: Any = IMAGES) -> dict[str, Any]:
    return {"data": [(change(x), y) for x, y in data]}


def integers(x: Any) -> Any:
    return x.astype("int32")


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (MixUp("dta"), {}, 'MixUp: there is no slot "dta" .did you mean "data"..; valid are "data", "label"'),
    (MixUp(label="labels"), {}, 'MixUp: there is no slot "labels" .did you mean "label"..'),
    (MixUp(loss="c"), {}, 'MixUp: there is no loss "c" .did you mean "ce"..; valid are "ce"'),
    (MixUp(["data", "label"]), {}, "MixUp: no loss reads a label that is permuted with the inputs"),
    (MixUp(), of_form(integers, DATA), 'MixUp: the slot "data" is int32, and only real numbers'),
    (CutMix("dat"), {"data": IMAGES}, 'CutMix: there is no slot "dat" .did you mean "data"'),
    (CutMix(), of_form(integers), 'CutMix: the slot "data" is int32, and only real numbers'),
    (CutMix(), of_form(lambda x: x.reshape((6, -1))),
     r'CutMix: the slot "data" is \(6, 192\) float32; images are \(N, C, H, W\)'),
    (CutMix(), of_form(lambda x: mx.nd.zeros((6, 8, 8, 3))),
     r'CutMix: the slot "data" is \(6, 8, 8, 3\) float32; images are \(N, C, H, W\)'),
    (CutMix(), SIZES, r'CutMix: the slot "far" is \(6, 2, 4, 6\) float32; images .* of one H and W'),
    (CutMix(), MASKS, r'CutMix: the label "mask" \(6, 1, 8, 12\) float32 has a value for'),
    (LabelSmoothing(), {"losses": {"l2": LossSpec(L2, "y", "label")}},
     r'LabelSmoothing: losses\["l2"\] is L2Loss; valid are'),
    (LabelSmoothing(loss=["ce", "b"]), {"losses": {**OF_CE, "b": LossSpec(DENSE, "y", "label")}},
     r'LabelSmoothing: losses\["b"\] is SoftmaxCrossEntropyLoss; valid are .* with sparse_label=True'),
    (LabelSmoothing(loss="cee"), {}, 'LabelSmoothing: there is no loss "cee" .did you mean "ce".'),
]  # fmt: skip


@pytest.mark.parametrize(("handler", "options", "message"), REFUSED)
def test_what_cannot_be_changed_is_refused(handler: Any, options: dict[str, Any], message: str) -> None:
    images = {"net": mlp(3, hybrid=False, inputs=INPUTS)} if isinstance(handler, CutMix) else {}
    with pytest.raises(SpecError, match=message):
        fit(handler, **{**images, **options})


def test_images_of_one_of_two_sizes_are_mixed() -> None:
    of_images(CutMix("near"), **SIZES, batches=1, epochs=None)
