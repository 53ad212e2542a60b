"""Sentiment: small trainings of both nets on both sources; the sentences; IMDB's folders; padding."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, check, predict, train

# isort: split
from mxnet import nd
from mxnet.gluon import rnn

FILE = TASKS / "sentiment.py"
TASK = TaskFile(FILE).module
SMALL = (
    "epochs=1", "train_count=4", "val_count=2", "batch_size=1", "length=12", "word_units=4", "hidden_units=4",
)  # fmt: skip


@pytest.fixture
def imdb(tmp_path) -> Path:
    """Return the parent of a folder aclImdb with five reviews."""
    for place, text in {
        "train/pos/0_9.txt": "A film to love.<br /><br />See it!",
        "train/pos/1_7.txt": "Not bad; très drôle.",
        "train/neg/0_1.txt": "Don't see it.",
        "test/pos/0_10.txt": "Love it",
        "test/neg/0_2.txt": "?!",
    }.items():
        path = tmp_path / "aclImdb" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the recurrent net once; return its folder."""
    folder = tmp_path_factory.mktemp("run")
    check_run(folder, train(FILE, folder, *SMALL, "model=birnn"))
    return folder


def check_run(folder: Path, figures: dict[str, list[float]]) -> None:
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_accuracy"][0] <= 1
    for name in ("confusion_mood.png", "misread.png"):
        assert (folder / name).stat().st_size > 3_000


def test_a_small_training_of_the_other_net_on_two_devices(tmp_path):
    check_run(tmp_path, train(FILE, tmp_path, *SMALL, "model=textcnn", "--devices", "2"))


def test_reading_imdb(imdb, tmp_path):
    for root in (imdb, imdb / "aclImdb"):
        assert TASK.read_imdb(str(root), "train") == [
            ("Don't see it.", 0), ("A film to love.  See it!", 1), ("Not bad; très drôle.", 1),
        ]  # fmt: skip
    check(FILE, *SMALL, "dataset=imdb", f"root={imdb}")
    with pytest.raises(FileNotFoundError, match=r"aclImdb/train/pos.*--set root=FOLDER"):
        TASK.read_imdb(str(tmp_path / "nowhere"), "train")


def test_predict_prints_a_mood_for_each_text(run, capsys):
    texts = ["The film was not bad!", "words nobody knows", ""]
    lines = predict(FILE, run, capsys, *texts)
    assert len(lines) == 3
    assert all(re.search(r": (positive|negative) \(\d+\.\d%\)$", line) for line in lines)


def test_a_text_is_padded_or_cut():
    task = TaskFile(FILE)
    task.set(["train_count=50", "length=3"])
    words, lengths = task.module.encoded(["the film", "the film was not good", ""])
    assert (words.shape, words.dtype, lengths.dtype) == ((3, 3), "int32", "float32")
    assert lengths.tolist() == [2, 3, 1]
    vocab = task.module.vocab()
    assert vocab.to_tokens(words[0].tolist()) == ["the", "film", "<pad>"]
    assert vocab.to_tokens(words[2].tolist()) == ["<unk>", "<pad>", "<pad>"]


def test_sentences_are_distinct_and_balanced_and_more_of_them_add_some():
    reviews = TASK.make_reviews(1000)
    assert len({text for text, _ in reviews}) == 1000
    assert sum(mood for _, mood in reviews) == 500
    assert TASK.make_reviews(40)[:20] == TASK.make_reviews(20)
    assert TASK.make_reviews(20, seed=1) != TASK.make_reviews(20)


def test_the_mood_agrees_with_the_grammar():
    sentences = sys.modules["data.sentences"]
    for text, mood in TASK.make_reviews(500):
        final = re.split(r" but |although .*? , ", text)[-1]  # the clause that decides
        for clause in final.split(" and "):
            negated = re.search(r"\b(not|nobody|never|far from)\b", clause) is not None
            words = set(TASK.words_of(clause))
            liked, disliked = words & set(sentences.GOOD), words & set(sentences.BAD)
            assert len(liked) + len(disliked) == 1
            assert bool(liked) != negated if mood else bool(disliked) != negated


def test_no_single_word_tells_the_mood():
    reviews = TASK.make_reviews(2000)
    for word in {word for text, _ in reviews for word in TASK.words_of(text)}:
        moods = [mood for text, mood in reviews if word in TASK.words_of(text)]
        assert 0.3 < np.mean(moods) < 0.7


def test_bidirectional_agrees_with_gluon_without_padding():
    block, layer = (
        TASK.Bidirectional(rnn.LSTM, 3),
        rnn.LSTM(3, bidirectional=True, layout="NTC", input_size=2),
    )
    inputs = nd.random.normal(shape=(2, 4, 2))
    for each in (block, layer):
        each.initialize()
    block(inputs, nd.array([4, 4]))
    for side, part in (("l", block.onward), ("r", block.back)):
        for name, value in part._collect_params_with_prefix().items():
            getattr(layer, f"{side}0_{name.split('.')[-1].replace('l0_', '')}").set_data(value.data())
    np.testing.assert_allclose(block(inputs, nd.array([4, 4])).asnumpy(), layer(inputs).asnumpy(), atol=1e-6)


@pytest.mark.parametrize("model", ["birnn", "textcnn"])
def test_padding_changes_nothing(model):
    task = TaskFile(FILE)
    task.set(["train_count=50", f"model={model}"])
    net = task.module.net()
    net.initialize()
    words, length = map(nd.array, task.module.encoded(["the film was not bad at all"]))
    wider = nd.concat(words, nd.ones((1, 9)) * words[0, -1], dim=1)
    np.testing.assert_allclose(net(words, length).asnumpy(), net(wider, length).asnumpy(), atol=1e-6)
