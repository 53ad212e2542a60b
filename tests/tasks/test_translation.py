"""Translation: small trainings of both nets on both sources; spelling; parallel files; decoding; BLEU."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from multifit.cli.taskfile import TaskFile

from .commands import TASKS, check, predict, train

# isort: split
from mxnet import cpu

FILE = TASKS / "translation.py"
TASK = TaskFile(FILE).module
SMALL = ("epochs=1", "train_count=5", "val_count=3", "batch_size=2", "units=8", "beam=2")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with parallel text in the format of IWSLT'15."""
    for name, lines in {
        "train.en": ["Good morning .", "", "Thank you", "lost", "How are you ?"],
        "train.vi": ["Chào buổi sáng .", "rỗng", "Cảm ơn", "", "Bạn khoẻ không ?"],
        "tst2012.en": ["Thank you .", "Good night"],
        "tst2012.vi": ["Cảm ơn .", "Ngủ ngon"],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Train the recurrent net once; return its folder."""
    folder = tmp_path_factory.mktemp("run")
    check_run(folder, train(FILE, folder, *SMALL))
    return folder


def check_run(folder: Path, figures: dict[str, list[float]]) -> None:
    assert all(math.isfinite(value) for values in figures.values() for value in values)
    assert 0 <= figures["val_bleu"][0] <= 1
    assert figures["train_loss"][0] == pytest.approx(math.log(15), rel=0.3)  # per token, of some 15 words
    assert figures["lr_encoder"] == figures["lr_decoder"] == [pytest.approx(0, abs=1e-9)]
    assert (folder / "attention.png").stat().st_size > 10_000


def test_a_small_training_of_the_other_net_on_two_devices(tmp_path):
    check_run(tmp_path, train(FILE, tmp_path, *SMALL, "model=transformer", "--devices", "2"))


def test_predict_prints_a_line_for_each_sentence(run, capsys):
    sentences = ["three hundred and two", "no such word"]
    lines = predict(FILE, run, capsys, *sentences)
    assert [line.partition(": ")[0] for line in lines] == sentences


# ---- the data ----------------------------------------------------------------------------------------------


def test_spelled_numbers():
    spelled = sys.modules["data.numbers"].spelled
    some = [*range(1200), *range(1200, 1_000_000, 997), 999_999]
    assert len({spelled(number) for number in some}) == len(some)
    for number, words in (
        (0, "zero"), (13, "thirteen"), (302, "three hundred and two"), (12_000, "twelve thousand"),
        (70_011, "seventy thousand and eleven"),
    ):  # fmt: skip
        assert spelled(number) == words
    for number in (-1, 1_000_000):
        with pytest.raises(ValueError, match="at least 0 and less than 1000000"):
            spelled(number)


def test_pairs_are_distinct_and_repeatable():
    pairs = TASK.make_pairs(500)
    assert len(set(pairs)) == 500
    assert TASK.make_pairs(600)[:500] == pairs
    spelled = sys.modules["data.numbers"].spelled
    assert all(words == spelled(int(digits.replace(" ", ""))) for words, digits in pairs)
    assert {len(digits.split()) for _, digits in pairs} == {2, 3, 4, 5, 6}


def test_reading_parallel_text(folder):
    assert TASK.read_parallel(str(folder), "train", ("en", "vi")) == [
        ("Good morning .", "Chào buổi sáng ."), ("Thank you", "Cảm ơn"),
        ("How are you ?", "Bạn khoẻ không ?"),
    ]  # fmt: skip
    check(FILE, *SMALL, "dataset=parallel", f"root={folder}")


def test_files_that_are_not_parallel_are_an_error(folder):
    message = r"train\.de; a folder must have two text files, .* train\.en.*--set root"
    with pytest.raises(FileNotFoundError, match=message):
        TASK.read_parallel(str(folder), "train", ("de", "en"))
    (folder / "train.vi").write_text("Một\n", "utf-8")
    with pytest.raises(ValueError, match=r"has 5 lines and .*train\.vi 1;"):
        TASK.read_parallel(str(folder), "train", ("en", "vi"))
    for language in ("en", "vi"):
        (folder / f"train.{language}").write_text("\n\n", "utf-8")
    with pytest.raises(ValueError, match="no line in common that is not empty"):
        TASK.read_parallel(str(folder), "train", ("en", "vi"))


@pytest.fixture
def bitext():
    """Return three training pairs and a held-out one, cut after three tokens."""
    return TASK.Bitext([("a b", "x"), ("b c d e", "y x z w"), ("a", "z z")], [("a q", "x")], 100, 3)


def test_samples(bitext):
    source, target_in, source_length, target_length, target_out = bitext.encode("b c d e", "y x z w")
    assert bitext.source.to_tokens(source) == ["b", "c", "d", "<eos>"]
    assert bitext.target.to_tokens(target_in) == ["<bos>", "y", "x", "z"]
    assert bitext.target.to_tokens(target_out) == ["y", "x", "z", "<eos>"]
    assert (source_length, target_length) == (4, 4)
    assert bitext.source.to_tokens(bitext.encode("q")[0]) == ["<unk>", "<eos>"]


def test_batches_are_padded_and_decoded_up_to_the_end(bitext):
    batch = bitext.batch([bitext.encode(*pair) for pair in bitext.train])
    assert [slot.shape for slot in batch] == [(3, 4), (3, 4), (3,), (3,), (3, 4)]
    assert [str(np.dtype(slot.dtype)) for slot in batch] == ["int32", "int32", "float32", "float32", "int32"]
    assert bitext.decode(batch[4].asnumpy()) == ["x", "y x z", "z z"]
    assert bitext.decode([[-1, -1], [*bitext.target[["x", "y"]]]]) == ["", "x y"]


def test_every_sample_is_loaded_once(bitext):
    train, held_out = bitext.loaders(2)
    decoded = [text for batch in train for text in bitext.decode(batch[4].asnumpy())]
    assert sorted(decoded) == ["x", "y x z", "z z"]
    assert [bitext.decode(batch[4].asnumpy()) for batch in held_out] == [["x"]]


# ---- the nets ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["rnn", "transformer"])
def net(request):
    """Return an untrained net, and a batch of different lengths."""
    task = TaskFile(FILE)
    task.set(["train_count=8", "val_count=1", "units=8", f"model={request.param}"])
    net, bitext = task.module.net(), task.module.bitext()
    net.initialize()
    batch = bitext.batch([bitext.encode(*pair) for pair in bitext.train])
    return net, [slot.as_in_context(cpu()) for slot in batch]


def test_decoding_step_by_step_agrees_with_one_call(net):
    net, (source, target, source_length, target_length, _) = net
    logits = net(source, target, source_length, target_length)[0].asnumpy()
    memory = net.encode(source, source_length)[0]
    states = net.decoder.init_state_from_encoder(memory, source_length)
    for step in range(target.shape[1]):
        output, states = net.decode_step(target[:, step], states)
        valid = target_length.asnumpy() > step
        np.testing.assert_allclose(output.asnumpy()[valid], logits[valid, step], atol=1e-5)


def test_a_sentence_does_not_depend_on_its_batch(net):
    net, (source, target, source_length, target_length, _) = net
    together = net(source, target, source_length, target_length)[0].asnumpy()
    for i, (s, t) in enumerate(zip(source_length.asnumpy().astype(int), target_length.asnumpy().astype(int))):
        one = slice(i, i + 1)
        alone = net(source[one, :s], target[one, :t], source_length[one], target_length[one])[0]
        np.testing.assert_allclose(together[i, :t], alone.asnumpy()[0], atol=1e-5)


def test_attention_is_a_distribution_over_the_source(net):
    net, (source, target, source_length, target_length, _) = net
    _, weights = net(source, target, source_length, target_length)
    weights = weights[-1][-1].asnumpy().reshape(len(source), -1, target.shape[1], source.shape[1])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    for row, length in zip(weights, source_length.asnumpy().astype(int)):
        assert not row[..., length:].any()


# ---- BLEU --------------------------------------------------------------------------------------------------

REFERENCES = ["3 0 2 4 5", "7 0 0 1 1", "1 2 3 4"]
TRANSLATIONS = ["3 0 2 4 5", "7 0 0 1 2", "1 2 3"]


def test_bleu_is_sacrebleus_corpus_score():
    metric = TASK.Bleu()
    assert math.isnan(metric.get()[1])
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], tokenize="none", force=True).score
    metric.update([TRANSLATIONS[:2]], [REFERENCES[:2]])
    first = metric.get()[1]
    metric.update([TRANSLATIONS[2:]], [REFERENCES[2:]])
    assert metric.get() == ("bleu", pytest.approx(expected / 100))
    assert 0 < metric.get()[1] < first < 1
    metric.reset()
    metric.update([TRANSLATIONS[:1], TRANSLATIONS[1:]], [REFERENCES[:1], REFERENCES[1:]])  # two devices
    assert metric.get()[1] == pytest.approx(expected / 100)
    metric.reset()
    metric.update([REFERENCES], [REFERENCES])
    assert metric.get()[1] == pytest.approx(1)
