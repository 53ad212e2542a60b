"""Random numbers of a task file are the same in every command, whatever else draws some."""

from pathlib import Path

import pytest

from .results import figures_of, history_of, record_of

DRAWS = """
import random
import mxnet as mx

NOISE = np.random.normal(size=(40, 3)).astype("float32")
drawn = open("drawn.txt", "a")

def functions():
    for name in ("net", "spec", "trainers", "initializer", "frozen", "balance", "sampling", "data"):
        def function(made=globals().get(name), name=name):
            numbers = random.random(), np.random.rand(), float(mx.nd.random.uniform().asscalar())
            print(name, *numbers, file=drawn, flush=True)
            if name == "data":
                return split()
            return made(None) if name == "trainers" else made and made() or {"frozen": ()}.get(name)
        yield name, function

def split():
    order = np.random.permutation(40)
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind = (point[:, 0] > 0).astype("int32")
    arrays = [array[order] for array in (point + NOISE, kind, point[:, :1])]
    train, val = (gluon.data.ArrayDataset(*(array[part] for array in arrays)) for part in np.s_[:30, 30:])
    return gluon.data.DataLoader(train, 10, shuffle=True), gluon.data.DataLoader(val, 10)

globals().update(functions())
"""


def drawn() -> dict[str, list[str]]:
    """Return the numbers that each function drew, and forget them."""
    lines = [line.split() for line in Path("drawn.txt").read_text().splitlines()]
    Path("drawn.txt").unlink()
    return {name: numbers for name, *numbers in lines}


def last(folder: str) -> dict[str, float]:
    """Return the last figures of the validation."""
    return {name[4:]: values[-1] for name, values in history_of(folder).items() if name.startswith("val_")}


@pytest.mark.parametrize(("code", "options", "file_seed"), [("", ("--seed", 5), 5), ("seed = 5\n", (), 0)])
def test_every_command_draws_what_train_drew(write, multifit, code, options, file_seed):
    """A seed in the file does not change its top level."""
    path = write(code + DRAWS)
    assert multifit("train", path, *options).code == 0
    record = record_of()
    assert (record["seed"], record["file_seed"]) == (5, file_seed)
    of_train = drawn()
    assert len({tuple(numbers) for numbers in of_train.values()}) == len(of_train) == 8
    result = multifit("evaluate", path, "--from", "runs/small", "--quiet")
    assert figures_of(result.out) == pytest.approx(last("runs/small"), rel=1e-4)
    of_evaluate = drawn()
    assert {"net", "data"} <= set(of_evaluate) and of_evaluate.items() <= of_train.items()
    assert multifit("train", path, "--resume", "--epochs", 3).code == 0 and drawn() == of_train
    assert multifit("check", path, "--seed", 6).code == 0
    assert {*map(tuple, drawn().values())}.isdisjoint(map(tuple, of_train.values()))


def test_the_seed_reaches_the_top_level_of_the_file(write, multifit):
    path = write("print(np.random.rand())\n")
    one, same, other = (
        multifit("check", path, "--quiet", *seed).out for seed in ([], ["--seed", 0], ["--seed", 6])
    )
    assert one == same != other and float(one) != float(other)


def test_a_run_has_one_seed(write, multifit):
    """The file's setting and what its functions get are the same, wherever the seed comes from."""
    path = write("seed = 5\nmade = net\ndef net(seed): print(seed, globals()['seed'], ';'); return made()\n")
    trains, evaluates = ["train", path, "--epochs", 1], ["evaluate", path, "--from", "runs/small"]
    for command, code, seeds in (
        (trains, 0, "5 5"),
        ([*trains, "--overwrite", "--set", "seed=6"], 0, "6 6"),
        ([*trains, "--overwrite", "--seed", 7], 0, "7 7"),
        ([*trains, "--resume"], 0, "7 7"),
        ([*trains, "--resume", "--set", "seed=6"], 2, ""),
        (evaluates, 0, "7 7"),
        ([*evaluates, "--seed", 8], 0, "8 8"),
    ):
        result = multifit(*command)
        assert (result.code, seeds in result.out.split(" ;")[0].split("\n")) == (code, True), result
    record = record_of()
    assert str(record["seed"]) == record["settings"]["seed"] == "7"
