"""CutMix; what it shares with MixUp is tested there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    CutMix,
    Every,
    LabelSpec,
    LossSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
)
from tests.common.grids import ONE, two_settings
from tests.common.nets import mlp
from tests.common.specs import CE, L2

import mxnet as mx  # isort: skip

from .training import DATA, assert_close, assert_equal, by_hand
from .training import fit as fit_of

HEIGHT, WIDTH = 8, 12
INPUTS = 2 * HEIGHT * WIDTH
_RANDOM = np.random.RandomState(4)
IMAGES = [(mx.nd.array(_RANDOM.randn(6, 2, HEIGHT, WIDTH)), y) for _, y in DATA]


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


@two_settings
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_training_equals_a_hand_written_loop(devices: Any, hybrid: bool, alpha: float) -> None:
    ours = fit(CutMix("data", "label", alpha=alpha, random=7), devices, hybrid)
    kept: list[float] = []
    assert_close(ours, by_hand(cut(np.random.RandomState(7), len(devices), alpha, kept), IMAGES, INPUTS))
    assert len(set(kept)) > 3  # boxes of several sizes were pasted


def test_a_box_without_pixels_leaves_its_batch_alone() -> None:
    ours = fit(CutMix(alpha=1e-3, random=3))
    kept: list[float] = []
    assert_close(ours, by_hand(cut(np.random.RandomState(3), 1, 1e-3, kept), IMAGES, INPUTS))
    assert 1.0 in kept and min(kept) < 1.0


def test_missing_labels_move_with_the_boxes() -> None:
    data = [(x, mx.nd.where(mx.nd.array([0, 0, 1, 0, 1, 0]), -mx.nd.ones_like(y), y)) for x, y in IMAGES]
    losses = {"ce": LossSpec(CE, "y", "label")}
    spec = TaskSpec(outputs=["y"], labels=[LabelSpec("label", missing=-1)], losses=losses)
    ours = fit(CutMix(random=7), spec=spec, data=data)
    assert_close(ours, by_hand(cut(np.random.RandomState(7), 1, 1.0, [], present=True), data, INPUTS))


@pytest.mark.parametrize("random", [None, 3], ids=["numpy's generator", "a seed"])
def test_a_resumed_fit_is_bit_for_bit_the_same(random: int | None, tmp_path: Path) -> None:

    def run(name: str, **options: Any) -> MultiEstimator:
        saving = CheckpointHandler(tmp_path / name, Every(1, "batch"), seed=5)
        return fit([CutMix(random=random), saving], **options)

    whole = run("whole")
    run("parts", epochs=None, batches=3)
    assert_equal(run("parts", resume=tmp_path / "parts"), whole)


def flat(images: Any) -> Any:
    return images.reshape((6, -1))


def last(images: Any) -> Any:
    return mx.nd.zeros((6, 8, 8, 3))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (flat, r'the slot "data" is \(6, 192\) float32; images are \(N, C, H, W\)'),
        (last, r'the slot "data" is \(6, 8, 8, 3\) float32; images are \(N, C, H, W\)'),
        (lambda images: images.astype("int32"), 'the slot "data" is int32, and only real numbers'),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(form: Any, message: str) -> None:
    with pytest.raises(SpecError, match=f"CutMix: {message}"):
        fit(CutMix(), data=[(form(x), y) for x, y in IMAGES])


def test_unknown_names_are_refused_in_its_name() -> None:
    with pytest.raises(SpecError, match='CutMix: there is no slot "dat" .did you mean "data"'):
        fit(CutMix("dat"))


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
