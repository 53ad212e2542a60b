"""PASCAL VOC: a small data set with the folders and files of its archives, and trainings on it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from multifit.cli import main
from multifit.cli.taskfile import TaskFile

from .commands import TASKS, check

OBJECT = """<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>
<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""
LISTS = {
    "VOC2007": {"Main/trainval": "ab", "Main/test": "cd"},
    "VOC2012": {"Main/trainval": "ef", "Segmentation/trainval": "efgh", "Segmentation/val": "gh"},
}


@pytest.fixture(scope="module")
def devkit(tmp_path_factory) -> Path:
    """Return a VOCdevkit: two years, 100 x 80 images, a cat and a dog in each."""
    root = tmp_path_factory.mktemp("VOCdevkit")
    random = np.random.RandomState(0)
    for year, lists in LISTS.items():
        folders = "Annotations JPEGImages SegmentationClass ImageSets/Main ImageSets/Segmentation"
        for folder in folders.split():
            (root / year / folder).mkdir(parents=True)
        for name, images in lists.items():
            (root / year / "ImageSets" / f"{name}.txt").write_text("".join(f"{image}\n" for image in images))
        for image in sorted(set("".join(lists.values()))):
            _write_image(root / year, image, random)
    return root


def _write_image(folder: Path, name: str, random: np.random.RandomState) -> None:
    pixels = random.randint(0, 256, (80, 100, 3)).astype("uint8")
    Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg")
    objects = OBJECT.format("cat", 0, 11, 11, 51, 61) + OBJECT.format("dog", 1, 61, 5, 91, 75)
    size = "<size><width>100</width><height>80</height><depth>3</depth></size>"
    (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    mask = np.zeros((80, 100), "uint8")
    mask[10:60, 10:50], mask[5:75, 60:90], mask[:9, :50] = 8, 12, 255  # 255: the border, which is ignored
    image = Image.fromarray(mask)
    image.putpalette(list(range(256)) * 3)  # makes its values indices of colours
    image.save(folder / "SegmentationClass" / f"{name}.png")


@pytest.mark.parametrize(
    ("task", "settings"), [("detection", ("size=64",)), ("segmentation", ("size=32", "model=fcn"))]
)
def test_tasks_fit_the_data(devkit, task, settings):
    check(TASKS / f"{task}.py", "dataset=voc", f"root={devkit}", "batch_size=2", *settings)


def test_boxes_of_both_years(devkit):
    voc = TaskFile(TASKS / "detection.py").module.voc
    train, test = voc.detection(str(devkit))
    assert (len(train), len(test)) == (4, 2)
    image, boxes = test[0]
    assert image.shape == (80, 100, 3)
    cat, dog = (voc.CLASSES.index(name) for name in ("cat", "dog"))
    np.testing.assert_array_equal(boxes, [[10, 10, 50, 60, cat, 0], [60, 4, 90, 74, dog, 1]])


def test_val_is_not_trained_on(devkit):
    train, val = TaskFile(TASKS / "segmentation.py").module.voc.segmentation(str(devkit), 32)
    assert [Path(image).stem for image in train.images] == ["e", "f"]
    assert [Path(image).stem for image in val.images] == ["g", "h"]
    assert [Path(mask).stem for mask in train.masks] == ["e", "f"]


def test_the_border_of_objects_is_ignored(devkit):
    _, val = TaskFile(TASKS / "segmentation.py").module.voc.segmentation(str(devkit), 32)
    image, mask = val[0]
    assert image.shape == (3, 32, 32)
    assert set(np.unique(mask.asnumpy())) == {-1, 0, 8, 12}


def test_a_missed_difficult_object_does_not_count(devkit):
    task = TaskFile(TASKS / "detection.py").module
    _, test = task.voc.detection(str(devkit))
    metric = task.VOC07MApMetric(class_names=task.voc.CLASSES)
    truth = test[0][1][None].astype("float32")
    boxes, ids, scores = truth[:, :1, :4], truth[:, :1, 4:5], np.ones((1, 1, 1))  # the cat alone
    metric.update(*([slot] for slot in task._as_voc(boxes, ids, scores, truth)))
    assert metric.get()[1][-1] == pytest.approx(1)


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_a_missing_folder_is_an_error(tmp_path, capsys, task):
    arguments = ["check", str(TASKS / f"{task}.py"), "--set", "dataset=voc", f"root={tmp_path}"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/VOC20" in error
    assert "ImageSets" in error and "JPEGImages" in error and "root=DIR" in error
