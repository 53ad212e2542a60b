"""``multifit train FILE --seeds N``: a run for each seed, which goes on where it was stopped."""

import signal
from pathlib import Path
from statistics import fmean, stdev

from .results import WRITTEN, history_of, record_of

# ends the first fit of seed 4 in its first epoch, as Ctrl-C does
INTERRUPTED = """
from pathlib import Path
import signal
class Interrupts:
    def __init__(self, seed):
        self.seed = seed
    def batch_end(self, estimator, **_):
        if self.seed == 4 and not Path("stopped").exists():
            Path("stopped").touch()
            signal.raise_signal(signal.SIGINT)
def handlers(seed):
    return [Interrupts(seed)]
"""


def lasts(folder: str, *seeds: int) -> list[float]:
    """Return the last loss of each of the seeds, which are all that the folder has."""
    assert sorted(path.name for path in Path(folder).iterdir()) == [f"seed-{seed}" for seed in seeds]
    return [history_of(f"{folder}/seed-{seed}")["val_loss"][-1] for seed in seeds]


def test_each_seed_is_a_run_and_the_last_figures_are_summed_up(write, multifit):
    path = write("seed = 3\n")  # the first seed is that of the file
    result = multifit("train", path, "--seeds", 2, "--quiet")
    assert result.code == 0 and "after the last epoch, mean ± standard deviation of 2 seeds" in result.out
    one, two = lasts("runs/small", 3, 4)
    assert f"{fmean([one, two]):.4f} ± {stdev([one, two]):.4f}" in result.out and one != two
    assert sorted(each.name for each in Path("runs/small/seed-4").glob("[!.]*")) == WRITTEN
    assert record_of("runs/small/seed-3")["seed"] == 3
    multifit("train", path, "--seed", 4, "--output", "alone", "--quiet")
    assert history_of("alone") == history_of("runs/small/seed-4")


def test_a_stopped_group_goes_on_where_it_was(write, multifit):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    path = write(INTERRUPTED, **{"epochs = 2": "epochs = 1"})
    options = ("train", path, "--seeds", 3, "--quiet", "--checkpoint-every", "1epochs")
    assert multifit(*options, "--seed", 3).code == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not Path("runs/small/seed-5").exists()
    finished = history_of("runs/small/seed-3")
    result = multifit(*options, "--resume")  # with the seeds that it has
    assert result.code == 0 and result.out.count("1 epoch; wrote") == 3
    assert history_of("runs/small/seed-3") == finished
    assert multifit(*options, "--seed", 3, "--output", "through").code == 0
    assert lasts("runs/small", 3, 4, 5)[::2] == lasts("through", 3, 4, 5)[::2]
    assert history_of("runs/small/seed-4")["lr"] == history_of("through/seed-4")["lr"]
    assert multifit(*options, "--resume", "--epochs", 2).out.count("2 epochs; wrote") == 3


def test_folders_in_use_are_refused_before_anything_is_trained(write, multifit):
    path = write()
    for seed in (1, 8):
        multifit(
            "train", path, "--seed", seed, "--output", f"runs/small/seed-{seed}", "--epochs", 1, "--quiet"
        )
    result = multifit("train", path, "--seeds", 2)
    assert result.code == 2 and "runs/small/seed-1 is not empty: --resume continues" in result.err
    assert not Path("runs/small/seed-0").exists()
    record = Path("runs/small/seed-1/settings.json")
    before = record.read_text()
    record.write_text(before.replace("small.py", "other.py"))
    result = multifit("train", path, "--seeds", 2, "--overwrite")
    assert result.code == 2 and "seed-1 is a run of other.py" in result.err
    assert not Path("runs/small/seed-0").exists()
    record.write_text(before)
    assert multifit("train", path, "--seeds", 2, "--overwrite", "--quiet").code == 0
    assert sorted(path.parent.name for path in Path("runs/small").glob("*/history.json")) == [
        "seed-0",
        "seed-1",
    ]
