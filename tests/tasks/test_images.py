"""Generated scenes and shapes: boxes, masks and counts agree with the pixels."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

# isort: split
from mxnet import nd

TASK = TaskFile(Path(__file__).parents[2] / "tasks" / "segmentation.py").module
MAKERS = {"scenes": TASK.scenes.scenes, "shapes": TASK.shapes.shapes}


@pytest.fixture(scope="module", params=list(MAKERS))
def images(request):
    """Return 30 images of one kind."""
    return MAKERS[request.param](30, 64)


def rows(images, image):
    """Return the boxes of an image without padding."""
    return images.boxes[image][images.boxes[image, :, 4] >= 0]


def test_counts_are_those_of_the_boxes(images):
    assert (images.image.shape, images.image.dtype) == ((30, 64, 64, 3), "uint8")
    assert [len(rows(images, image)) for image in range(30)] == images.count.tolist()
    assert 1 <= images.count.min() < images.count.max() <= 4


def test_every_pixel_of_a_mask_is_in_a_box_of_its_class(images):
    for image, mask in enumerate(images.mask):
        covered = np.zeros_like(mask, bool)
        for left, top, right, bottom, kind, _ in rows(images, image).astype(int):
            here = mask[top:bottom, left:right]
            covered[top:bottom, left:right] |= here == kind + 1
            assert (here == kind + 1).any()
        assert (covered == (mask > 0)).all()


def test_boxes_of_digits_are_tight_and_apart():
    images = TASK.scenes.scenes(20, 96)
    for image, mask in enumerate(images.mask):
        taken = np.zeros_like(mask)
        for left, top, right, bottom, *_ in rows(images, image).astype(int):
            inside = mask[top:bottom, left:right] > 0
            assert inside.any(axis=0)[[0, -1]].all()
            assert inside.any(axis=1)[[0, -1]].all()
            taken[top:bottom, left:right] += 1
        assert taken.max() == 1


@pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))
def test_images_repeat_and_held_out_ones_differ(maker):
    first, again, held_out = maker(3, 64), maker(3, 64), maker(3, 64, held_out=True)
    for one, other in zip(first, again):
        np.testing.assert_array_equal(one, other)
    assert (first.image != held_out.image).any()


def test_held_out_scenes_show_other_digits(monkeypatch):
    pools = []
    nothing = np.zeros((64, 64, 3), "uint8"), np.zeros((1, 6), "float32"), np.zeros((64, 64), "int32")
    monkeypatch.setattr(TASK.scenes, "_scene", lambda *arguments: pools.append(arguments[3]) or nothing)
    for held_out in (False, True):
        TASK.scenes.scenes(1, 64, held_out=held_out)
    assert not set(pools[0]) & set(pools[1])
    assert len(pools[0]) + len(pools[1]) == 1797


def test_first_samples_of_any_batches():
    images, boxes = nd.arange(6).reshape((6, 1)), [nd.zeros((2, 3)), nd.ones((2, 5)), nd.zeros((2, 1))]
    batches = [(images[2 * i : 2 * i + 2], boxes[i]) for i in range(3)]
    samples = TASK.first_samples(batches, 3)
    assert [image.tolist() for image, _ in samples] == [[0], [1], [2]]
    assert [box.shape for _, box in samples] == [(3,), (3,), (5,)]
    assert len(TASK.first_samples(batches, 100)) == 6


def test_display_undoes_normalization():
    image = np.random.RandomState(0).randint(0, 256, (2, 5, 4, 3), "uint8")
    np.testing.assert_array_equal(TASK.displayed(TASK.normalize(image)), image)


def test_images_are_read_in_their_colours(tmp_path):
    path = tmp_path / "red.png"
    cv2.imwrite(str(path), np.full((9, 30, 3), (0, 0, 200), "uint8"))  # blue, green, red
    for size in (4, 32):
        read = TASK.read_images([str(path)], size)
        assert read.shape == (1, size, size, 3)
        assert (read == (200, 0, 0)).all()


def test_an_unreadable_image_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no image .*nowhere.png"):
        TASK.read_images([str(tmp_path / "nowhere.png")], 8)
    (tmp_path / "text.png").write_text("no pixels")
    with pytest.raises(ValueError, match="text.png is not an image"):
        TASK.read_images([str(tmp_path / "text.png")], 8)
