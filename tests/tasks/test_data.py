"""The data of the tasks: generated images and texts, and files in the formats of real data sets."""

import gzip
import math
import re
import struct
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import sacrebleu
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from multifit.cli import main
from multifit.cli.taskfile import TaskFile

# isort: split
from mxnet import nd

TASKS = Path(__file__).parents[2] / "tasks"
sys.path.insert(0, str(TASKS))

from data import bleu, images, imdb, mnist, numbers, parallel, patches, scenes, sentences, shapes  # noqa: E402
from data import python_topics as topics  # noqa: E402
from data.bitext import Bitext  # noqa: E402

MAKERS = {"scenes": scenes.scenes, "shapes": shapes.shapes}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def write_mnist(folder: Path) -> Path:
    """Write eight training digits and four others: a magic number, the sizes, the values."""
    pixels, kinds = load_digits(return_X_y=True)
    large = np.array([cv2.resize(image.reshape(8, 8) * 15.9, (28, 28)) for image in pixels[:12]])
    for part, chosen in (("train", np.s_[:8]), ("t10k", np.s_[8:12])):
        arrays = {"images-idx3": large[chosen], "labels-idx1": kinds[chosen]}
        for name, array in arrays.items():
            sizes = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
            with gzip.open(folder / f"{part}-{name}-ubyte.gz", "wb") as file:
                file.write(sizes + array.astype("uint8").tobytes())
    return folder


def write_imdb(folder: Path) -> Path:
    files = {
        "train/pos/0_9.txt": "A film to love.<br /><br />See it!",
        "train/pos/1_7.txt": "Not bad; très drôle.",
        "train/neg/0_1.txt": "Don't see it.",
        "test/pos/0_10.txt": "Love it",
        "test/neg/0_2.txt": "?!",
    }
    return write(folder, {f"aclImdb/{name}": text for name, text in files.items()})


def write_iwslt(folder: Path) -> Path:
    files = {
        "train.en": ["Good morning .", "", "Thank you", "lost", "How are you ?"],
        "train.vi": ["Chào buổi sáng .", "rỗng", "Cảm ơn", "", "Bạn khoẻ không ?"],
        "tst2012.en": ["Thank you .", "Good night"],
        "tst2012.vi": ["Cảm ơn .", "Ngủ ngon"],
    }
    return write(folder, {name: "".join(f"{line}\n" for line in lines) for name, lines in files.items()})


def write_voc(folder: Path) -> Path:
    """Write a VOCdevkit: two years, 100 x 80 images, a cat and a difficult dog in each."""
    lists = {
        "VOC2007": {"Main/trainval": "ab", "Main/test": "cd"},
        "VOC2012": {"Main/trainval": "ef", "Segmentation/trainval": "efgh", "Segmentation/val": "gh"},
    }
    mask = np.zeros((80, 100), "uint8")
    mask[10:60, 10:50], mask[5:75, 60:90], mask[:9, :50] = 8, 12, 255  # 255: the border, which is ignored
    objects = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{left}</xmin>"
        f"<ymin>{top}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, difficult, left, top, right, bottom in (
            ("cat", 0, 11, 11, 51, 61),
            ("dog", 1, 61, 5, 91, 75),
        )
    )
    size = "<size><width>100</width><height>80</height><depth>3</depth></size>"
    for year, each in lists.items():
        write(
            folder / year, {f"ImageSets/{name}.txt": "\n".join(names) + "\n" for name, names in each.items()}
        )
        for name in set("".join(each.values())):
            write(folder / year, {f"Annotations/{name}.xml": f"<annotation>{size}{objects}</annotation>"})
            for inner in ("JPEGImages", "SegmentationClass"):
                (folder / year / inner).mkdir(exist_ok=True)
            Image.fromarray(np.full((80, 100, 3), 99, "uint8")).save(folder / year / f"JPEGImages/{name}.jpg")
            picture = Image.fromarray(mask)
            picture.putpalette(list(range(256)) * 3)  # makes its values indices of colours
            picture.save(folder / year / f"SegmentationClass/{name}.png")
    return folder


def write_table(folder: Path) -> Path:
    """Write 20 cases, whose class is whether the first measure is above the second."""
    measures = np.random.RandomState(0).randn(20, 2) * [1, 100] + [5, 500]
    lines = [f"{a},{b},{int(a - 5 > (b - 500) / 100)}" for a, b in measures]
    return write(folder, {"cases.csv": "\n".join(["first,second,above", *lines])}) / "cases.csv"


# A task with the settings of a data set, or of another net, which nightly/table.py trains
ADAPTED = {
    "classification dataset=mnist model=resnet18 batch_size=4": write_mnist,
    "sentiment dataset=imdb batch_size=1 length=12": write_imdb,
    "translation dataset=parallel batch_size=2 units=8": write_iwslt,
    "detection dataset=voc size=64 batch_size=2": write_voc,
    "segmentation dataset=voc size=32 model=fcn aux_weight=0.5 batch_size=2": write_voc,
    "logistic_regression dataset=csv batch_size=4": write_table,
    "augmentation train_patches=4 val_patches=4 batch_size=2 augmented=False": None,
    "cells gates=False": None,
    "detection train_count=4 val_count=2 batch_size=2 size=64 base=resnet18_v1": None,
}


@pytest.mark.parametrize("case", ADAPTED)
def test_a_task_fits_the_data_and_nets_that_may_be_chosen(case, tmp_path):
    task, *settings = case.split()
    if ADAPTED[case]:
        settings.append(f"root={ADAPTED[case](tmp_path)}")
    assert main(["check", str(TASKS / f"{task}.py"), "--quiet", "--set", *settings]) == 0


MISSING = {
    "logistic_regression dataset=csv": ("no file {}", "a line of titles, then a case in each line"),
    "detection dataset=voc": ("{}/VOC20", "ImageSets", "JPEGImages", "root=DIR"),
    "segmentation dataset=voc": ("{}/VOC20", "ImageSets", "JPEGImages", "root=DIR"),
    "sentiment dataset=imdb": ("aclImdb/train/pos", "--set root=FOLDER"),
    "translation dataset=parallel": ("train.en", "a folder must have two text files", "--set root"),
    "classification dataset=mnist": (
        "dataset=mnist: train-images-idx3-ubyte.gz, ",
        "root must be the folder with",
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_data_set_is_an_error_that_says_which_files_it_needs(case, tmp_path, capsys):
    task, setting = case.split()
    root = tmp_path / "nothing"
    assert main(["check", str(TASKS / f"{task}.py"), "--set", setting, f"root={root}"]) == 2
    error = capsys.readouterr().err
    assert all(part.format(root) in error for part in MISSING[case])


# ---- images ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=MAKERS)
def made(request):
    """Return 30 images of one kind."""
    return MAKERS[request.param](30, 64)


def rows(made, image):
    """Return the boxes of an image without padding."""
    return made.boxes[image][made.boxes[image, :, 4] >= 0]


def test_generated_boxes_masks_and_counts_agree(made):
    assert (made.image.shape, made.image.dtype) == ((30, 64, 64, 3), "uint8")
    assert [len(rows(made, image)) for image in range(30)] == made.count.tolist()
    assert 1 <= made.count.min() < made.count.max() <= 4
    for image, mask in enumerate(made.mask):
        covered = np.zeros_like(mask, bool)
        for left, top, right, bottom, kind, _ in rows(made, image).astype(int):
            here = mask[top:bottom, left:right]
            covered[top:bottom, left:right] |= here == kind + 1
            assert (here == kind + 1).any()
        assert (covered == (mask > 0)).all()


def test_boxes_of_digits_are_tight_and_apart():
    made = scenes.scenes(20, 96)
    for image, mask in enumerate(made.mask):
        taken = np.zeros_like(mask)
        for left, top, right, bottom, *_ in rows(made, image).astype(int):
            inside = mask[top:bottom, left:right] > 0
            assert inside.any(axis=0)[[0, -1]].all() and inside.any(axis=1)[[0, -1]].all()
            taken[top:bottom, left:right] += 1
        assert taken.max() == 1


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_images_repeat_and_held_out_ones_differ(maker):
    first, again, held_out = maker(3, 64), maker(3, 64), maker(3, 64, held_out=True)
    for one, other in zip(first, again):
        np.testing.assert_array_equal(one, other)
    assert (first.image != held_out.image).any()


def test_held_out_scenes_show_other_digits(monkeypatch):
    pools = []
    nothing = np.zeros((64, 64, 3), "uint8"), np.zeros((1, 6), "float32"), np.zeros((64, 64), "int32")
    monkeypatch.setattr(scenes, "_scene", lambda *arguments: pools.append(arguments[3]) or nothing)
    for held_out in (False, True):
        scenes.scenes(1, 64, held_out=held_out)
    assert not set(pools[0]) & set(pools[1]) and len(pools[0]) + len(pools[1]) == 1797


def test_no_digit_is_in_both_parts():
    (train_image, train_kind), (test_image, test_kind) = mnist.digits()
    assert (len(train_kind), len(test_kind)) == (1437, 360)
    assert not {image.tobytes() for image in train_image} & {image.tobytes() for image in test_image}
    assert set(train_kind) == set(test_kind) == set(range(10))
    train_data, val_data = TaskFile(TASKS / "few_digits.py").module.data()
    loaders = [val_data, *train_data.values()]
    assert [sum(len(batch[0]) for batch in loader) for loader in loaders] == [360, 50, 1387]


def test_reading_mnist(tmp_path):
    (image, kind), (test_image, test_kind) = mnist.mnist(str(write_mnist(tmp_path)))
    assert image.shape == (8, 1, 28, 28) and test_image.shape == (4, 1, 28, 28)
    assert image.dtype == np.float32 and image.min() == 0 and 0.9 < image.max() <= 1
    np.testing.assert_array_equal(np.concatenate([kind, test_kind]), load_digits().target[:12])
    row = cv2.resize(load_digits().data[0].reshape(8, 8) * 15.9, (28, 28)).astype("uint8")
    np.testing.assert_allclose(image[0, 0], row / 255, rtol=1e-6)
    with pytest.raises(FileNotFoundError, match="in no folder at all; root must be the folder with"):
        mnist.mnist("")


def test_dark_and_bright_paper_give_the_same_digit(tmp_path):
    image = (mnist.digits()[1][0][0, 0] * 255).astype("uint8")
    framed = cv2.resize(np.pad(image, 1), (100, 100), interpolation=cv2.INTER_NEAREST)
    for name, pixels in (("dark.png", framed), ("bright.png", 255 - framed)):
        cv2.imwrite(str(tmp_path / name), pixels)
    dark, bright = (mnist.read_digit(str(tmp_path / name), 10) for name in ("dark.png", "bright.png"))
    assert dark.shape == (1, 10, 10) and dark.max() > 0.9
    np.testing.assert_allclose(dark, bright, atol=0.01)


def test_images_are_read_in_their_colours(tmp_path):
    photograph = np.zeros((20, 60, 3), "uint8")
    photograph[:, 20:40] = (0, 0, 200)  # blue, green, red, as OpenCV has it
    path = str(tmp_path / "red.png")
    cv2.imwrite(path, photograph)
    read = patches.read_photograph(path, 20).asnumpy()  # the square in the middle
    assert (read == [200, 0, 0]).all() and read.shape == (20, 20, 3)
    cv2.imwrite(path, photograph[:, 20:40])
    for size in (4, 32):
        read = images.read_images([path], size)
        assert read.shape == (1, size, size, 3) and (read == (200, 0, 0)).all()
    np.testing.assert_array_equal(images.displayed(images.normalize(read)), read)


@pytest.mark.parametrize("read", [images.read_images, mnist.read_digit, patches.read_photograph])
def test_a_picture_that_cannot_be_read_is_an_error(read, tmp_path):
    path = str(tmp_path / "nothing.png")
    with pytest.raises(FileNotFoundError, match="no image .*nothing.png"):
        read([path] if read is images.read_images else path, 8)
    write(tmp_path, {"text.png": "no pixels"})
    with pytest.raises(ValueError, match="text.png is not an image"):
        images.read_images([str(tmp_path / "text.png")], 8)


def test_first_samples_of_any_batches():
    image, boxes = nd.arange(6).reshape((6, 1)), [nd.zeros((2, 3)), nd.ones((2, 5)), nd.zeros((2, 1))]
    batches = [(image[2 * i : 2 * i + 2], boxes[i]) for i in range(3)]
    samples = images.first_samples(batches, 3)
    assert [image.tolist() for image, _ in samples] == [[0], [1], [2]]
    assert [box.shape for _, box in samples] == [(3,), (3,), (5,)]
    assert len(images.first_samples(batches, 100)) == 6


def test_patches_are_balanced_repeatable_and_held_out_ones_of_other_halves(monkeypatch):
    first, again = patches.patches(6, 16), patches.patches(6, 16)
    assert [kind for _, kind in first] == [0, 1, 0, 1, 0, 1]
    np.testing.assert_array_equal(first[:][0].asnumpy(), again[:][0].asnumpy())
    assert first[0][0].shape == (16, 16, 3) and first[0][0].dtype == np.uint8
    photographs = load_sample_images()
    left = np.arange(640)[:, None] < 320
    photographs.images = [np.where(left, 0, image | 255).astype("uint8") for image in photographs.images]
    monkeypatch.setattr(patches, "load_sample_images", lambda: photographs)
    assert (patches.patches(40, 16)[:][0].asnumpy() == 0).all()
    assert (patches.patches(40, 16, held_out=True)[:][0].asnumpy() == 255).all()


def test_augmentation_is_random_and_keeps_the_shape():
    patch = patches.patches(2, 32)[1][0]
    once, twice = patches.augmentation(32)(patch), patches.augmentation(32)(patch)
    assert once.shape == patches.plain()(patch).shape == (3, 32, 32)
    assert abs(once - twice).mean().asscalar() > 0.01 and abs(once).max().asscalar() < 5


def test_reading_voc(tmp_path):
    """In boxes of both years, and in masks; a missed difficult object does not count."""
    root, detection = str(write_voc(tmp_path)), TaskFile(TASKS / "detection.py").module
    voc = detection.voc
    train, test = voc.detection(root)
    assert (len(train), len(test)) == (4, 2)
    image, boxes = test[0]
    cat, dog = (voc.CLASSES.index(name) for name in ("cat", "dog"))
    assert image.shape == (80, 100, 3)
    np.testing.assert_array_equal(boxes, [[10, 10, 50, 60, cat, 0], [60, 4, 90, 74, dog, 1]])
    metric = detection.VOC07MApMetric(class_names=voc.CLASSES)
    truth = boxes[None].astype("float32")
    found = truth[:, :1, :4], truth[:, :1, 4:5], np.ones((1, 1, 1))  # the cat alone
    metric.update(*([slot] for slot in detection._as_voc(*found, truth)))
    assert metric.get()[1][-1] == pytest.approx(1)
    train, val = voc.segmentation(root, 32)
    for paths, names in ((train.images, "ef"), (train.masks, "ef"), (val.images, "gh")):
        assert "".join(Path(path).stem for path in paths) == names
    image, mask = val[0]
    assert image.shape == (3, 32, 32) and set(np.unique(mask.asnumpy())) == {-1, 0, 8, 12}


# ---- texts -------------------------------------------------------------------------------------------------


def test_reading_imdb(tmp_path):
    root = write_imdb(tmp_path)
    for folder in (root, root / "aclImdb"):
        assert imdb.read_imdb(str(folder), "train") == [
            ("Don't see it.", 0), ("A film to love.  See it!", 1), ("Not bad; très drôle.", 1),
        ]  # fmt: skip


def test_sentences_are_distinct_and_balanced_and_more_of_them_add_some():
    reviews = sentences.make_reviews(1000)
    assert len({text for text, _ in reviews}) == 1000 and sum(mood for _, mood in reviews) == 500
    assert sentences.make_reviews(40)[:20] == sentences.make_reviews(20)
    assert sentences.make_reviews(20, seed=1) != sentences.make_reviews(20)


def test_the_mood_agrees_with_the_grammar_and_no_single_word_tells_it():
    reviews = [(text, set(sentences.words_of(text)), mood) for text, mood in sentences.make_reviews(2000)]
    for text, _, mood in reviews[:500]:
        final = re.split(r" but |although .*? , ", text)[-1]  # the clause that decides
        for clause in final.split(" and "):
            negated = re.search(r"\b(not|nobody|never|far from)\b", clause) is not None
            words = set(sentences.words_of(clause))
            liked, disliked = words & set(sentences.GOOD), words & set(sentences.BAD)
            assert len(liked) + len(disliked) == 1
            assert bool(liked) != negated if mood else bool(disliked) != negated
    for word in set.union(*(words for _, words, _ in reviews)):
        assert 0.3 < np.mean([mood for _, words, mood in reviews if word in words]) < 0.7


def test_a_text_is_padded_or_cut():
    task = TaskFile(TASKS / "sentiment.py")
    task.set(["train_count=50", "length=3"])
    words, lengths = task.module.encoded(["the film", "the film was not good", ""])
    assert (words.shape, words.dtype, lengths.dtype) == ((3, 3), "int32", "float32")
    assert lengths.tolist() == [2, 3, 1]
    vocab = task.module.vocab()
    assert vocab.to_tokens(words[0].tolist()) == ["the", "film", "<pad>"]
    assert vocab.to_tokens(words[2].tolist()) == ["<unk>", "<pad>", "<pad>"]


def test_numbers_are_spelled_and_pairs_are_distinct_and_repeatable():
    some = [*range(1200), *range(1200, 1_000_000, 997), 999_999]
    assert len({numbers.spelled(number) for number in some}) == len(some)
    for number, words in (
        (0, "zero"), (13, "thirteen"), (302, "three hundred and two"), (12_000, "twelve thousand"),
        (70_011, "seventy thousand and eleven"),
    ):  # fmt: skip
        assert numbers.spelled(number) == words
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match="at least 0 and less than 1000000"):
            numbers.spelled(number)
    pairs = numbers.make_pairs(500)
    assert len(set(pairs)) == 500 and numbers.make_pairs(600)[:500] == pairs
    assert all(words == numbers.spelled(int(digits.replace(" ", ""))) for words, digits in pairs)
    assert {len(digits.split()) for _, digits in pairs} == {2, 3, 4, 5, 6}


def test_reading_parallel_text(tmp_path):
    def read():
        return parallel.read_parallel(str(tmp_path), "train", ("en", "vi"))

    write_iwslt(tmp_path)
    assert read() == [
        ("Good morning .", "Chào buổi sáng ."), ("Thank you", "Cảm ơn"),
        ("How are you ?", "Bạn khoẻ không ?"),
    ]  # fmt: skip
    write(tmp_path, {"train.vi": "Một\n"})
    with pytest.raises(ValueError, match=r"has 5 lines and .*train\.vi 1;"):
        read()
    write(tmp_path, {"train.vi": "\n\n", "train.en": "\n\n"})
    with pytest.raises(ValueError, match="no line in common that is not empty"):
        read()


def test_pairs_of_sentences_are_encoded_padded_and_decoded():
    bitext = Bitext(
        [("a b", "x"), ("b c d e", "y x z w"), ("a", "z z")], [("a q", "x")], 100, 3
    )  # three tokens
    source, target_in, source_length, target_length, target_out = bitext.encode("b c d e", "y x z w")
    assert bitext.source.to_tokens(source) == ["b", "c", "d", "<eos>"]
    assert bitext.target.to_tokens(target_in) == ["<bos>", "y", "x", "z"]
    assert bitext.target.to_tokens(target_out) == ["y", "x", "z", "<eos>"]
    assert (source_length, target_length) == (4, 4)
    assert bitext.source.to_tokens(bitext.encode("q")[0]) == ["<unk>", "<eos>"]
    batch = bitext.batch([bitext.encode(*pair) for pair in bitext.train])
    assert [slot.shape for slot in batch] == [(3, 4), (3, 4), (3,), (3,), (3, 4)]
    assert [str(np.dtype(slot.dtype)) for slot in batch] == ["int32", "int32", "float32", "float32", "int32"]
    assert bitext.decode(batch[4].asnumpy()) == ["x", "y x z", "z z"]
    assert bitext.decode([[-1, -1], [*bitext.target[["x", "y"]]]]) == ["", "x y"]
    train, held_out = bitext.loaders(2)
    loaded = [text for batch in train for text in bitext.decode(batch[4].asnumpy())]
    assert sorted(loaded) == ["x", "y x z", "z z"]
    assert [bitext.decode(batch[4].asnumpy()) for batch in held_out] == [["x"]]


def test_each_batch_of_text_goes_on_where_the_one_before_ended():
    task = TaskFile(TASKS / "language.py").module
    train_data, val_data = task.data()
    words, following = (np.concatenate(columns, axis=1) for columns in zip(*train_data))
    np.testing.assert_array_equal(words[:, 1:], following[:, :-1])
    assert words.ravel().tolist() == task.vocab()[task.texts()[0]][: words.size]
    assert {batch[0].shape for batch in [*train_data, *val_data]} == {(20, 35)}
    metric, bigram = task.Perplexity(), task.perplexities()["bigram"]
    metric.update(None, [nd.full((4,), np.log(bigram / 4))])
    names, values = metric.get()
    assert names == ["perplexity", "saved"] and values == pytest.approx([bigram / 4, 0.75], rel=1e-5)
    assert 20 < bigram < task.perplexities()["unigram"] / 2 < 100


def test_paragraphs_are_kept_once_and_held_out_only_if_they_are_new():
    texts = {str(number): f"Topic {number}.\n\nSaid by all." for number in range(1, 9)}
    texts["8"] += "\n\nOnly  here,\nonly_once.\n\nOnly here, only_once."
    train_words, held_out = topics.read_topics(texts)
    expected = [word for number in range(1, 8) for word in ["topic", str(number), "."]]
    expected[3:3] = ["said", "by", "all", "."]
    assert train_words == expected
    assert held_out == ["topic", "8", ".", "only", "here", ",", "only", "_", "once", "."]


def test_perplexities_are_of_distributions_of_counted_words():
    unigram, bigram = topics.unigram_perplexity, topics.bigram_perplexity
    assert unigram([0, 0, 1], [0, 2], 3) == pytest.approx((3 / 6 * 1 / 6) ** -0.5)
    # The pairs 0-1 (twice), 1-0 and 1-2. Word 0 has one word before it, 1 has one and 2 has one: each 2 of 6.
    pairs = [(2 - 0.75 + 0.75 / 3) / 2, (1 - 0.75 + 1.5 / 3) / 2, 1 / 3]  # 0-1, 1-2 and, after nothing, 2-0
    assert bigram([0, 1, 0, 1, 2], [0, 1, 2, 0], 3) == pytest.approx(np.prod(pairs) ** (-1 / 3))
    text = np.random.RandomState(0).randint(0, 5, 40).tolist()
    assert sum(1 / unigram(text, [word], 6) for word in range(6)) == pytest.approx(1)
    for before in (3, 5):  # known, and unknown
        assert sum(1 / bigram(text, [before, word], 6) for word in range(6)) == pytest.approx(1)


REFERENCES, TRANSLATIONS = ["3 0 2 4 5", "7 0 0 1 1", "1 2 3 4"], ["3 0 2 4 5", "7 0 0 1 2", "1 2 3"]


def test_bleu_is_sacrebleus_corpus_score():
    score = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], tokenize="none", force=True).score / 100
    metric = bleu.Bleu()
    assert math.isnan(metric.get()[1]) and 0 < score < 1
    for cut in ([3], [2, 3]):  # batches, then devices of a batch
        starts = [0, *cut[:-1]]
        texts, truths = ([each[i:j] for i, j in zip(starts, cut)] for each in (TRANSLATIONS, REFERENCES))
        metric.reset()
        for text, truth in zip(texts, truths):
            metric.update([text], [truth])
        assert metric.get() == ("bleu", pytest.approx(score))
        metric.reset()
        metric.update(texts, truths)
        assert metric.get() == ("bleu", pytest.approx(score))
    metric.reset()
    metric.update([REFERENCES], [REFERENCES])
    assert metric.get()[1] == pytest.approx(1)
