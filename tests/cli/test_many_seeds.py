"""``multifit train FILE --seeds N``: a run for each seed, which goes on where it was stopped."""

import json
import signal
from pathlib import Path
from statistics import fmean, stdev

import pytest

from .results import WRITTEN, history_of, record_of

# ends the first fit of seed 4 in its first epoch, as Ctrl-C does
INTERRUPTED = """
from pathlib import Path
import os, signal
class Interrupts:
    def __init__(self, seed):
        self.seed = seed
    def batch_end(self, estimator, **_):
        if self.seed == 4 and not Path("stopped").exists():
            Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGINT)
def handlers(seed):
    return [Interrupts(seed)]
"""


def lasts(folder: str, figure: str = "val_loss") -> list[float]:
    paths = sorted(path.parent for path in Path(folder).glob("seed-*/history.json"))
    return [json.loads((path / "history.json").read_text())[figure][-1] for path in paths]


def test_each_seed_is_a_run_and_the_last_figures_are_summed_up(write, multifit):
    path = write()
    result = multifit("train", path, "--seeds", 2, "--seed", 3, "--quiet")
    assert result.code == 0 and "after the last epoch, mean ± standard deviation of 2 seeds" in result.out
    assert sorted(each.name for each in Path("runs/small").iterdir()) == ["seed-3", "seed-4"]
    assert sorted(each.name for each in Path("runs/small/seed-4").iterdir() if each.name[0] != ".") == WRITTEN
    one, two = lasts("runs/small")
    assert f"{fmean([one, two]):.4f} ± {stdev([one, two]):.4f}" in result.out and one != two
    multifit("train", path, "--seed", 4, "--output", "alone", "--quiet")
    assert history_of("alone") == history_of("runs/small/seed-4")


def test_a_stopped_group_goes_on_where_it_was(write, multifit):
    path = write(INTERRUPTED)
    before = signal.getsignal(signal.SIGINT)
    options = ("train", path, "--seeds", 3, "--quiet", "--checkpoint-every", "1epochs")
    assert multifit(*options, "--seed", 3).code == 130 and signal.getsignal(signal.SIGINT) is before
    assert not Path("runs/small/seed-5").exists()
    finished = history_of("runs/small/seed-3")
    result = multifit(*options, "--resume")  # with the seeds that it has
    assert result.code == 0 and result.out.count("2 epochs; wrote") == 3
    assert history_of("runs/small/seed-3") == finished
    assert multifit(*options, "--seed", 3, "--output", "through").code == 0
    for seed in (3, 4, 5):
        assert history_of(f"runs/small/seed-{seed}")["lr"] == history_of(f"through/seed-{seed}")["lr"]
    assert lasts("runs/small")[::2] == lasts("through")[::2]
    assert multifit(*options, "--resume", "--epochs", 3).out.count("3 epochs; wrote") == 3


def test_the_first_seed_is_that_of_the_file(write, multifit):
    assert multifit("train", write("seed = 7\n"), "--seeds", 1, "--quiet").code == 0
    assert record_of("runs/small/seed-7")["seed"] == 7


def test_folders_in_use_are_refused_before_anything_is_trained(write, multifit):
    path = write()
    multifit("train", path, "--seed", 1, "--output", "runs/small/seed-1", "--quiet")
    multifit("train", path, "--seed", 8, "--output", "runs/small/seed-8", "--quiet")
    result = multifit("train", path, "--seeds", 2)
    assert result.code == 2 and "runs/small/seed-1 is not empty: --resume continues" in result.err
    assert not Path("runs/small/seed-0").exists()
    assert multifit("train", path, "--seeds", 2, "--overwrite", "--quiet").code == 0
    assert len(lasts("runs/small")) == 2  # the run of seed 8 would count as one of them
    result = multifit("train", path, "--seeds", 2, "--output", "runs/small/seed-1")
    assert result.code == 2 and "runs/small/seed-1 is itself a run" in result.err


@pytest.mark.parametrize("number", ["0", "two"])
def test_a_number_of_seeds_is_a_whole_one(write, multifit, number, capsys):
    with pytest.raises(SystemExit):
        multifit("train", write(), "--seeds", number)
    assert f"{number} is not a whole number of at least 1" in capsys.readouterr().err
