"""Language model: a short training, its text, and the models that count words beside it."""

import json

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, predict, train

# isort: split
from mxnet import nd

FILE = TASKS / "language.py"
TASK = TaskFile(FILE).module  # tasks/ is then on the path


def test_a_short_training(tmp_path, capsys):
    history = train(FILE, tmp_path, "epochs=1", "units=16", "rarest=40", "length=70")
    last = {name: values[-1] for name, values in history.items()}
    assert last["val_text.perplexity"] == pytest.approx(np.exp(last["val_next"]), rel=1e-3)
    assert last["val_text.saved"] < 1
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert ["output", "hidden", "(1, 20, 16) float32", "the next batch"] in plan["train"]["rows"]
    lines = predict(FILE, tmp_path, capsys, "the value of the", "x = ")
    assert len(lines) == 2 and all(line.count(", ") >= 4 for line in lines)


def test_each_batch_goes_on_where_the_one_before_ended():
    train_data, val_data = TASK.data()
    words, following = (np.concatenate(columns, axis=1) for columns in zip(*train_data))
    np.testing.assert_array_equal(words[:, 1:], following[:, :-1])
    text = TASK.vocab()[TASK.texts()[0]]
    assert words.ravel().tolist() == text[: words.size]
    assert {batch[0].shape for batch in [*train_data, *val_data]} == {(20, 35)}


def test_the_metric_is_relative_to_the_bigram_model():
    metric, bigram = TASK.Perplexity(), TASK.perplexities()["bigram"]
    metric.update(None, [nd.full((4,), np.log(bigram / 4))])
    names, values = metric.get()
    assert names == ["perplexity", "saved"] and values == pytest.approx([bigram / 4, 0.75], rel=1e-5)
    assert 20 < bigram < TASK.perplexities()["unigram"] / 2 < 100


def test_paragraphs_are_kept_once_and_held_out_only_if_they_are_new():
    from data.python_topics import read_topics

    texts = {str(number): f"Topic {number}.\n\nSaid by all." for number in range(1, 9)}
    texts["8"] += "\n\nOnly  here,\nonly_once.\n\nOnly here, only_once."
    train_words, held_out = read_topics(texts)
    expected = [word for number in range(1, 8) for word in ["topic", str(number), "."]]
    expected[3:3] = ["said", "by", "all", "."]
    assert train_words == expected
    assert held_out == ["topic", "8", ".", "only", "here", ",", "only", "_", "once", "."]


def test_perplexities_of_counted_words():
    from data.python_topics import bigram_perplexity, unigram_perplexity

    assert unigram_perplexity([0, 0, 1], [0, 2], 3) == pytest.approx((3 / 6 * 1 / 6) ** -0.5)
    # The pairs 0-1 (twice), 1-0 and 1-2. Word 0 has one word before it, 1 has one and 2 has one: each 2 of 6.
    pairs = [(2 - 0.75 + 0.75 / 3) / 2, (1 - 0.75 + 1.5 / 3) / 2, 1 / 3]  # 0-1, 1-2 and, after nothing, 2-0
    probability = np.prod(pairs)
    assert bigram_perplexity([0, 1, 0, 1, 2], [0, 1, 2, 0], 3) == pytest.approx(probability ** (-1 / 3))


def test_perplexities_are_of_distributions():
    from data.python_topics import bigram_perplexity, unigram_perplexity

    text = np.random.RandomState(0).randint(0, 5, 40).tolist()
    assert sum(1 / unigram_perplexity(text, [word], 6) for word in range(6)) == pytest.approx(1)
    for before in (3, 5):  # known, and unknown
        assert sum(1 / bigram_perplexity(text, [before, word], 6) for word in range(6)) == pytest.approx(1)
