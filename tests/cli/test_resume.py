"""``multifit train … --checkpoint-every … --resume``, Ctrl-C and SIGHUP. Refusals: test_refused.py."""

import json
import logging
import os
import signal
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


def results(folder: str = "runs/small") -> list[bytes]:
    return [(Path(folder) / name).read_bytes() for name in RESULTS]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("multifit"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def test_checkpoints_are_written_on_schedule(write, multifit, log):
    """Resuming without a run starts one."""
    assert multifit("train", write(), "--resume", "--checkpoint-every", "1 batch").code == 0
    assert f"no checkpoint in {Path('runs/small').absolute()} yet: starting from scratch" in log()
    facts = [read_info(path).facts for path in sorted(Path("runs/small/checkpoints").iterdir())]
    assert [(each["step"], each["complete"]) for each in facts] == [(5, False), (6, True)]


def test_a_resumed_run_keeps_its_settings_seed_and_schedule(write, multifit, log):
    path = write()
    options = ("--set", "rate=0.01", "--seed", 3, "--checkpoint-every", "2batches")
    multifit("train", path, *options, "--epochs", 4, "--output", "uninterrupted")
    multifit("train", path, *options, "--epochs", 2, "--output", "run")
    first = record_of("run")
    assert first["command"].startswith(f"multifit train {path} --set rate=0.01 --seed 3 --checkpoint-every")
    assert datetime.strptime(first["started"], "%Y-%m-%d %H:%M:%S %z") <= datetime.now().astimezone()
    figures = [f"{stage}_{name}" for stage in ("train", "val") for name in ("loss", "kind", "place")]
    assert first["directions"] == dict.fromkeys(figures, "min")
    result = multifit("train", path, "--resume", "--epochs", 4, "--output", "run")
    assert result.code == 0 and "4 epochs; wrote run" in result.out
    assert "resuming from epoch-0002-step-00000006: epoch 3" in log()
    assert results("run") == results("uninterrupted")
    second = record_of("run")
    assert (second["settings"]["rate"], second["seed"], second["checkpoint_every"]) == ("0.01", 3, "2batch")
    assert [second[name] for name in ("command", "started")] == [first["command"], first["started"]]
    assert second["seconds"] > first["seconds"] > 0
    text = Path("run/log.txt").read_text()
    assert "training for 2 epochs" in text and "resuming from" in text and "stopped: 4 epochs" in text
    before = results("run")
    assert multifit("train", path, "--resume", "--output", "run").code == 0
    assert "the run had finished: 4 epochs" in log() and results("run") == before


def test_options_on_the_command_line_replace_those_of_the_run(trained, multifit):
    """But for the seed, which may be named."""
    text = trained.read_text()
    trained.write_text(text.replace("rate = 0.05", "rate = 0.05\nseen = 30").replace("s_[:30", "s_[:seen"))
    options = ("--epochs", 3, "--checkpoint-every", "1epochs", "--set", "seen=20", "--seed", 3)
    assert multifit("train", trained, "--resume", *options).code == 0
    record = record_of()
    assert (record["checkpoint_every"], record["seed"]) == ("1epoch", 3)
    assert record["settings"] == {"epochs": "3", "rate": "0.1", "seen": "20"}


def test_a_resumed_run_keeps_its_devices_unless_others_are_named(trained, multifit):
    Path("runs/small/settings.json").write_text(json.dumps({**record_of(), "devices": "gpu:77"}))
    assert multifit("evaluate", trained, "--from", "runs/small").code == 0
    for epochs, options in ((3, ["--devices", "cpu"]), (4, [])):
        assert multifit("train", trained, "--resume", "--epochs", epochs, *options).code == 0
        assert record_of()["devices"] == "cpu"


def test_settings_that_are_others_in_the_file_by_now_are_logged(trained, multifit, log):
    trained.write_text(trained.read_text().replace("epochs = 2", "epochs = 3"))
    assert multifit("train", trained, "--resume").code == 0
    kept = [f"{each} is kept from the run, not the file's" for each in ("epochs=2", "rate=0.1")]
    assert [line for line in log() if "is kept from the run" in line] == kept
    assert multifit("train", trained, "--resume", "--epochs", 3, "--set", "rate=0.05").code == 1
    assert len([line for line in log() if "is kept from the run" in line]) == 2


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
    assert results("run") == results("uninterrupted") and record_of("run")["settings"]["rate"] == "0.2"


def test_a_resumed_run_keeps_its_pictures_until_it_draws_others(write, multifit):
    assert multifit("train", write(PICTURES)).code == 0
    before = {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    with pytest.raises(InterruptedError):
        multifit("train", write(CUT + PICTURES), "--resume", "--epochs", 3)
    assert before == {path: path.read_bytes() for path in Path("runs/small").glob("*.png")}
    record = record_of()
    assert record["epochs"] == 3 and record["pictures"][::3] == ["curves.png", "places.png"]


# ---- signals, in processes of their own --------------------------------------------------------------------

SLOW = """
import time
class Slow(gluon.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.01)
        return np.ones(3, "float32"), np.float32(1), np.ones(1, "float32")

def data(seed):
    return gluon.data.DataLoader(Slow(), 4, num_workers=2)
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
    assert all((Path("run") / each).exists() for each in wrote) and record_of("run")["seconds"] > 0
    epochs = len(history_of("run")["train_loss"])
    assert epochs >= 2 and last.startswith(f"interrupted in epoch {epochs};")
    text = Path("run/log.txt").read_text()
    assert "SIGHUP: ending the fit" in text and "stopped: SIGHUP" in text
    result = multifit("train", path, "--resume", "--epochs", epochs + 1, "--output", "run")
    assert result.code == 0 and f"{epochs + 1} epochs; wrote run" in result.out
    losses = history_of("run")["train_loss"]
    assert len(losses) == epochs + 1 and all(loss < 10 for loss in losses)


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
