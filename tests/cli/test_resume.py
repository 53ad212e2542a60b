"""``multifit train … --checkpoint-every … --resume``, Ctrl-C and SIGTERM."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from multifit.checkpoints import read_info
from tests.common.processes import processes, wait_for

from .results import PICTURES, history_of, record_of

# The step of the small task is a batch of 10; it has three of them an epoch.
RESULTS = ("history.json", "final.params")


def same(one: str, two: str) -> bool:
    return all((Path(one) / name).read_bytes() == (Path(two) / name).read_bytes() for name in RESULTS)


def contents(folder: str) -> dict[str, bytes]:
    """Return the files of a run but its log, which says what was refused, by name."""
    paths = [path for path in Path(folder).iterdir() if path.is_file() and path.name != "log.txt"]
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def test_checkpoints_are_written_on_schedule(write, multifit):
    assert multifit("train", write(), "--checkpoint-every", "1 batch").code == 0
    paths = sorted(Path("runs/small/checkpoints").iterdir())
    facts = [read_info(path).facts for path in paths]
    assert [(each["step"], each["complete"]) for each in facts] == [(5, False), (6, True)]


def test_a_resumed_run_keeps_its_settings_seed_and_schedule(write, multifit, log):
    path = write()
    options = ("--set", "rate=0.01", "--seed", 3, "--checkpoint-every", "2batches")
    multifit("train", path, *options, "--epochs", 4, "--output", "uninterrupted")
    multifit("train", path, *options, "--epochs", 2, "--output", "run")
    result = multifit("train", path, "--resume", "--epochs", 4, "--output", "run")
    assert result.code == 0 and "4 epochs; wrote run" in result.out
    assert "resuming from epoch-0002-step-00000006: epoch 3" in log()
    assert same("run", "uninterrupted")
    record = record_of("run")
    assert (record["settings"]["rate"], record["seed"], record["checkpoint_every"]) == ("0.01", 3, "2batch")
    text = Path("run/log.txt").read_text()
    assert "training for 2 epochs" in text and "resuming from" in text and "stopped: 4 epochs" in text


def test_options_on_the_command_line_replace_those_of_the_run(trained, multifit):
    text = trained.read_text()
    trained.write_text(text.replace("rate = 0.05", "rate = 0.05\nseen = 30").replace("s_[:30", "s_[:seen"))
    options = ("--epochs", 3, "--checkpoint-every", "1epochs", "--set", "seen=20")
    assert multifit("train", trained, "--resume", *options).code == 0
    record = record_of()
    assert record["checkpoint_every"] == "1epoch"
    assert record["settings"] == {"epochs": "3", "rate": "0.1", "seen": "20"}


def test_a_resumed_run_keeps_its_seed(trained, multifit):
    before = contents("runs/small")
    result = multifit("train", trained, "--resume", "--epochs", 3, "--seed", 4)
    assert result.code == 2 and "runs/small is trained with seed 3, which a resumed run keeps" in result.err
    assert contents("runs/small") == before
    assert multifit("train", trained, "--resume", "--epochs", 3, "--seed", 3).code == 0
    assert record_of()["seed"] == 3


def test_a_resumed_run_keeps_its_devices_unless_others_are_named(trained, multifit):
    Path("runs/small/settings.json").write_text(json.dumps({**record_of(), "devices": "gpu:77"}))
    assert multifit("evaluate", trained, "--from", "runs/small").code == 0
    resume = ("train", trained, "--resume", "--epochs")
    result = multifit(*resume, 3)
    missing = "--devices gpu:77: context: gpu(77) does not exist: this machine"
    assert result.code == 2 and missing in result.err
    for epochs, options in ((3, ["--devices", "cpu"]), (4, [])):
        assert multifit(*resume, epochs, *options).code == 0 and record_of()["devices"] == "cpu"


def test_settings_that_are_others_in_the_file_by_now_are_logged(trained, multifit, log):
    trained.write_text(trained.read_text().replace("epochs = 2", "epochs = 3"))
    assert multifit("train", trained, "--resume").code == 0
    kept = [f"{each} is kept from the run, not the file's" for each in ("epochs=2", "rate=0.1")]
    assert [line for line in log() if "is kept from the run" in line] == kept
    assert multifit("train", trained, "--resume", "--epochs", 3, "--set", "rate=0.05").code == 1
    assert len([line for line in log() if "is kept from the run" in line]) == 2


def test_resuming_without_a_run_starts_one(write, multifit, log):
    assert multifit("train", write(), "--resume", "--checkpoint-every", 1, "--epochs", 1).code == 0
    assert f"no checkpoint in {Path('runs/small').absolute()} yet: starting from scratch" in log()


CUT = """
class Cut(gluon.data.DataLoader):
    def __iter__(self):
        yield from list(super().__iter__())[:2]
        raise InterruptedError("power cut")

def data(seed):
    point = np.ones((30, 3), "float32")
    return Cut(gluon.data.ArrayDataset(point, point[:, 0], point[:, :1]), 10)
"""


def test_a_run_begun_anew_that_is_cut_off_is_not_resumed_as_the_earlier_one(write, multifit):
    options = ("--set", "rate=0.2", "--checkpoint-every", 1)
    multifit("train", write(), *options, "--output", "uninterrupted")
    multifit("train", write(), "--epochs", 1, "--output", "run")
    with pytest.raises(InterruptedError):
        multifit("train", write(CUT), *options, "--output", "run", "--overwrite")
    assert multifit("train", write(), "--resume", "--output", "run").code == 0
    assert same("run", "uninterrupted") and record_of("run")["settings"]["rate"] == "0.2"


def test_resuming_a_finished_run_changes_nothing(trained, multifit, log):
    before = {name: (Path("runs/small") / name).read_bytes() for name in RESULTS}
    assert multifit("train", trained, "--resume").code == 0
    assert "the run had finished: 2 epochs" in log()
    assert before == {name: (Path("runs/small") / name).read_bytes() for name in RESULTS}


def test_another_net_is_an_error_and_changes_nothing(trained, multifit):
    trained.write_text(trained.read_text().replace("nn.Dense(2)", "nn.Dense(4)"))
    before = contents("runs/small")
    result = multifit("train", trained, "--resume", "--epochs", 3)
    assert result.code == 1 and "Traceback" not in result.err
    assert 'parameters["kind.weight"].shape: [2, 3] in the checkpoint, [4, 3] here' in result.err
    assert result.err.startswith("multifit: a resumed run keeps net, spec and trainers: undo the change, or ")
    assert contents("runs/small") == before


def test_the_record_says_when_and_how_a_run_began_and_how_long_it_took(write, multifit):
    path = write()
    assert multifit("train", path, "--epochs", 1, "--quiet").code == 0
    first = record_of()
    assert first["command"] == f"multifit train {path} --epochs 1 --quiet"
    assert datetime.strptime(first["started"], "%Y-%m-%d %H:%M:%S %z") <= datetime.now().astimezone()
    assert first["directions"] == dict.fromkeys(
        [f"{stage}_{name}" for stage in ("train", "val") for name in ("loss", "kind", "place")], "min"
    )
    assert multifit("train", path, "--epochs", 2, "--resume").code == 0
    second = record_of()
    assert [second[name] for name in ("command", "started")] == [first["command"], first["started"]]
    assert second["seconds"] > first["seconds"] > 0


def test_the_run_of_another_file_or_of_none_is_an_error(trained, multifit):
    other = trained.rename(trained.with_name("other.py"))
    resume = "train", other, "--resume", "--output", "runs/small"
    result = multifit(*resume)
    assert result.code == 2 and "runs/small is a run of small.py, not of other.py" in result.err
    Path("runs/small/settings.json").unlink()
    result = multifit(*resume)
    assert result.code == 2 and "runs/small is not the folder of a run: settings.json: No such" in result.err


def test_a_resumed_run_keeps_its_pictures_until_it_draws_others(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    before = {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    with pytest.raises(InterruptedError):
        multifit("train", write(CUT + PICTURES), "--resume", "--epochs", 3)
    assert before == {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    record = record_of()
    assert record["epochs"] == 3 and record["pictures"][::3] == ["curves.png", "places.png"]


def test_damaged_checkpoints_are_an_error_and_nothing_changes(trained, multifit):
    (checkpoint,) = Path("runs/small/checkpoints").iterdir()
    (checkpoint / "net.params").unlink()
    before = contents("runs/small")
    result = multifit("train", trained, "--resume", "--epochs", 3)
    assert result.code == 1 and "net.params is missing" in result.err and "Traceback" not in result.err
    assert contents("runs/small") == before


@pytest.fixture
def process(tmp_path) -> Iterator[Callable[..., Any]]:
    with processes(tmp_path) as start:
        yield start


def test_signals_to_all_processes_end_the_run_with_its_results(write, multifit, process):
    """As when a terminal is closed, where the shell and the kernel send one each; workers load the batch."""
    path = write(SLOW)
    running = process("train", path, "--epochs", 1000, "--output", "run")
    wait_for(running, " 1/1000 ")
    os.killpg(running.pid, signal.SIGHUP)
    wait_for(running, ": ending the fit")
    os.killpg(running.pid, signal.SIGHUP)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130, out
    last = out.strip().split("\n")[-1]
    wrote = {*last.partition("; wrote run: ")[2].split(", ")}
    assert {"checkpoints", "final.params", "history.json", "log.txt", "settings.json"} <= wrote
    assert all((Path("run") / each).exists() for each in wrote)
    epochs = len(history_of("run")["train_loss"])
    assert epochs >= 2 and last.startswith(f"interrupted in epoch {epochs};")
    assert record_of("run")["seconds"] > 0
    text = Path("run/log.txt").read_text()
    assert "SIGHUP: ending the fit" in text and "stopped: SIGHUP" in text
    result = multifit("train", path, "--resume", "--epochs", epochs + 1, "--output", "run")
    assert result.code == 0 and f"{epochs + 1} epochs; wrote run" in result.out
    losses = history_of("run")["train_loss"]
    assert len(losses) == epochs + 1 and all(loss < 10 for loss in losses)


SLOW = """
import time
class Slow(gluon.data.Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        time.sleep(0.05)
        return np.ones(3, "float32"), np.float32(1), np.ones(1, "float32")

def data(seed):
    return tuple(gluon.data.DataLoader(Slow(), 10, num_workers=2) for _ in range(2))
"""


STUCK = """
import signal
import time
class Stuck(gluon.data.DataLoader):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 1:
                print("stuck", flush=True)
                while not signal.getsignal(signal.SIGINT).__self__._reason:
                    time.sleep(0.01)
                print("noticed", flush=True)
                while True:  # not one long read: a signal that arrives just before it would not interrupt it
                    time.sleep(0.01)
            yield batch

def data(seed):
    point = np.ones((30, 3), "float32")
    return Stuck(gluon.data.ArrayDataset(point, point[:, 0], point[:, :1]), 10)
"""


def test_a_second_ctrl_c_ends_at_once(write, process):
    running = process("train", write(STUCK), "--output", "run", "--checkpoint-every", 1)
    wait_for(running, "stuck")
    running.send_signal(signal.SIGINT)
    wait_for(running, "noticed")
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130, out
    assert out.strip().endswith("multifit: interrupted") and "wrote" not in out
    assert not Path("run/final.params").exists() and not Path("run/checkpoints").exists()


def test_quiet_keeps_the_log_file(write, multifit, capsys):
    logger = logging.getLogger("multifit")
    console = logging.StreamHandler(sys.stdout)
    logger.addHandler(console)
    try:
        result = multifit("train", write(), "--quiet")
    finally:
        logger.removeHandler(console)
    assert "epoch" not in result.out.replace("2 epochs; wrote", "") and console.level == logging.NOTSET
    assert "epoch 2/2" in Path("runs/small/log.txt").read_text()
