"""CutMix; what it shares with MixUp is tested there."""

from typing import Any

import numpy as np
import pytest

from multifit import CutMix, LabelSpec, LossSpec, MultiEstimator, SpecError, TaskSpec
from tests.common.grids import ONE, TWO
from tests.common.nets import mlp
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip

from .training import HEIGHT, IMAGES, SOME, WIDTH, assert_close, by_hand
from .training import fit as fit_of

INPUTS = 2 * HEIGHT * WIDTH


def fit(handlers: Any, devices: Any = ONE, hybrid: bool = True, **options: Any) -> MultiEstimator:
    return fit_of(
        handlers, devices, **{"net": mlp(3, devices, hybrid, inputs=INPUTS), "data": IMAGES, **options}
    )


def box_of(random: Any, alpha: float) -> tuple[slice, slice, float]:
    """Draw as the paper does: the rows and columns of a box, and the share outside of it."""
    side = np.sqrt(1 - random.beta(alpha, alpha))
    ranges = []
    for at, length in zip(random.uniform(size=2), (HEIGHT, WIDTH)):
        centre, half = int(at * length), int(side * length / 2)
        ranges.append(np.clip([centre - half, centre + half], 0, length))
    (top, bottom), (left, right) = ranges
    outside = 1 - (bottom - top) * (right - left) / (HEIGHT * WIDTH)
    return slice(top, bottom), slice(left, right), outside


def cut(random: Any, shares: int, alpha: float, kept: list[float], present: bool = False) -> Any:
    def objective(net: Any, x: Any, y: Any) -> Any:
        size = len(x) // shares
        rows, columns, outside = box_of(random, alpha)
        order = np.concatenate([random.permutation(size) + i * size for i in range(shares)])
        images = x.asnumpy()
        images[:, :, rows, columns] = x.asnumpy()[order][:, :, rows, columns]
        kept.append(outside)
        outputs, labels = net(mx.nd.array(images)), (y, y[mx.nd.array(order)])
        own, other = ((label >= 0) * CE(outputs, label.relu()) for label in labels)
        total = (outside * own + (1 - outside) * other) * len(y)
        return total / (y >= 0).sum() if present else total / len(y)

    return objective


@pytest.mark.parametrize(
    ("alpha", "seed", "devices", "hybrid"),
    [(1.0, 7, ONE, False), (2.0, 7, TWO, True), (1e-3, 3, ONE, True)],
    ids=["one device", "two devices, hybridized", "boxes without pixels"],
)
def test_training_equals_a_hand_written_loop(alpha: float, seed: int, devices: Any, hybrid: bool) -> None:
    ours = fit(CutMix("data", "label", alpha=alpha, random=seed), devices, hybrid)
    kept: list[float] = []
    assert_close(ours, by_hand(cut(np.random.RandomState(seed), len(devices), alpha, kept), IMAGES, INPUTS))
    assert len(set(kept)) > (3 if alpha >= 1 else 1)  # boxes of several sizes were pasted
    assert (1.0 in kept) == (alpha < 1)


def test_missing_labels_move_with_the_boxes() -> None:
    data = [(x, y) for (x, _), (_, y) in zip(IMAGES, SOME)]
    losses = {"ce": LossSpec(CE, "y", "label")}
    spec = TaskSpec(outputs=["y"], labels=[LabelSpec("label", missing=-1)], losses=losses)
    ours = fit(CutMix(random=7), spec=spec, data=data)
    assert_close(ours, by_hand(cut(np.random.RandomState(7), 1, 1.0, [], present=True), data, INPUTS))


@pytest.mark.parametrize(
    ("inputs", "form", "message"),
    [
        (None, lambda images: images.reshape((6, -1)),
         r'the slot "data" is \(6, 192\) float32; images are \(N, C, H, W\)'),
        (None, lambda images: mx.nd.zeros((6, 8, 8, 3)),
         r'the slot "data" is \(6, 8, 8, 3\) float32; images are \(N, C, H, W\)'),
        (None, lambda images: images.astype("int32"), 'the slot "data" is int32, and only real numbers'),
        ("dat", lambda images: images, 'there is no slot "dat" .did you mean "data"'),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(inputs: Any, form: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"CutMix: {message}"):
        fit(CutMix(inputs), data=[(form(x), y) for x, y in IMAGES])


def test_images_of_two_sizes_and_labels_of_pixels_are_refused() -> None:
    def sum_of(net: Any, slots: Any) -> Any:
        return net(slots["near"].reshape((6, -1)))

    spec = TaskSpec(
        inputs=["near", "far"], outputs=["y"], labels=["label"], losses={"ce": LossSpec(CE, "y", "label")},
        forward=sum_of,
    )  # fmt: skip
    data = [(x, x[:, :, ::2, ::2], y) for x, y in IMAGES]
    with pytest.raises(
        SpecError, match=r'CutMix: the slot "far" is \(6, 2, 4, 6\) float32; images .* of one H and W'
    ):
        fit(CutMix(), spec=spec, data=data, hybrid=False)
    fit(CutMix("near"), spec=spec, data=data, hybrid=False, batches=1, epochs=None)

    net = mx.gluon.nn.Conv2D(1, 1)
    net.initialize()
    spec = TaskSpec(outputs=["y"], labels=["mask"], losses={"mask": LossSpec(L2, "y", "mask")})
    with pytest.raises(SpecError, match=r'CutMix: the label "mask" \(6, 1, 8, 12\) float32 has a value for'):
        fit(CutMix(), net=net, spec=spec, data=[(x, x[:, :1]) for x, _ in IMAGES])
