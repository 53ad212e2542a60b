"""What commands cannot use is reported in few words, without a traceback, and changes no file."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock

from multifit.engines import registry
from multifit.gluon.compat import mx

from .results import INPUTS, MISSPELT

RUN = Path("runs/small")


class Refused(NamedTuple):
    """A command in a folder with small.py and its run; `more` and `replaced` change the file before it.

    A `before` of a dict of files and contents, None for none, or a function changes the run.
    """

    command: str
    message: str
    code: int = 2
    more: str = ""
    replaced: Mapping[str, str] = {}
    before: Any = {}


def record(**fields: Any) -> dict[str, Any]:
    """Change fields of the run's record, or write others if one has no name."""
    return {"settings.json": fields}


def parameters(values: Any) -> Callable[[], None]:
    return lambda: mx.nd.save(str(RUN / "final.params"), values)


NEW = "train small.py --output new"
AGAIN = "train small.py --resume --epochs 3"
OF_RUN = "small.py --from runs/small"
EVALUATE, PREDICT = f"evaluate {OF_RUN}", f"predict {OF_RUN} 3,0,0"
OVERWRITE = "train small.py --overwrite"
ONCE = "data() of small.py must return loaders that can be read again"
DENSE = "nn.Dense(2)"
REFUSED = {
    # ---- the command line and the file
    "a setting": Refused(f"{NEW} --set rat=1", 'has no setting "rat" (did you mean "rate"?)'),
    "devices": Refused(
        f"{NEW} --devices tpu", "--devices tpu: cannot read the devices 'tpu': write a number of "),
    "a seed": Refused(f"{NEW} --seed -1", "seed must be from 0 to"),
    "a seed of the file": Refused(NEW, "is 1.5; valid is a whole number", more="seed = 1.5\n"),
    "a file as folder": Refused("train small.py --output small.py", "[Errno 17] File exists: "),
    "epochs": Refused(NEW, "is 'x'; valid is a whole number of at least 1", 1, "epochs = 'x'\n"),
    "no epochs": Refused(
        NEW, "how long to train? Give --epochs", more="del epochs\ndef data(): raise AssertionError\n"),
    "a precision": Refused(
        f"{NEW} --precision bfloat", "precision is 'bfloat' (did you mean \"bfloat16\"?)"),
    "no file": Refused("train nothing.py", "multifit: there is no file nothing.py\n"),
    "a circle": Refused(
        NEW, "small.py need each other in a circle: ", more="def data(history): return history\n"),
    "exits": Refused(NEW, "multifit: small.py called sys.exit(", more="import sys; sys.exit(0)\n"),
    "exits later": Refused(
        NEW, "; to end a command, raise an exception that says why",
        more="def net(): raise SystemExit('no data')\n"),
    "no data file": Refused(
        "check small.py", "multifit: [Errno 2] No such file or directory: 'points.csv' (small.py, line ",
        more="def data(): open('points.csv')\n"),
    "no launcher": Refused(
        f"{NEW} --distributed torch",
        "no launcher started this one: torchrun --nproc-per-node 2 -m multifit"),
    "a timeout": Refused(f"{NEW} --timeout 0", "multifit: --timeout is 0.0; valid is"),
    # ---- what does not fit
    "an output": Refused(NEW, "plase", 1, replaced=MISSPELT),
    "a parameter without trainer": Refused(
        "check small.py", "place.weight", 1, replaced={'TrainerSpec(".*",': 'TrainerSpec("kind.*",'}),
    "three loaders": Refused(
        NEW, "must return (train_data, val_data) or train_data, not a tuple of 3",
        more="two = data\ndef data(seed): return (*two(seed), None)\n"),
    "a generator": Refused(NEW, ONCE, more="two = data\ndef data(seed): yield from two(seed)\n"),
    "an iterator": Refused(
        NEW, ONCE, more="two = data\ndef data(seed): return two(seed)[0], iter(list(two(seed)[1]))\n"),
    "no batch": Refused("profile small.py", "train_data is empty", 1, "\ndef data():\n    return []\n"),
    "a handler's figure": Refused(
        NEW, 'there is no figure "val_los" (did you mean "val_loss"?)', 1,
        "def handlers(): import multifit; return multifit.EarlyStoppingHandler('val_los')\n"),
    "no handlers": Refused(
        OVERWRITE, "handlers() of small.py is 'print'; valid is a handler or a list of handlers",
        more="def handlers(): return 'print'"),
    "a function as handler": Refused(
        OVERWRITE, "handlers() of small.py that cannot be used", more="def handlers(): return [print]"),
    "handlers of the history": Refused(
        OVERWRITE, "small.py need each other in a circle: ", more="def handlers(history): return []"),
    "a task": Refused(
        f"{NEW} --only plase", 'no task \'plase\' (did you mean "place"?); tasks are "kind", "place"', 1),
    # ---- folders that are in use
    "a used folder": Refused(
        "train small.py", "multifit: runs/small is not empty: --resume continues the run in it, "
        "--overwrite removes that run, --output DIR writes elsewhere\n"),
    "files of the user": Refused(
        "train small.py", "runs/small is not empty", before={"settings.json": None, "notes.txt": "mine"}),
    "seeds in a run": Refused("train small.py --seeds 2", "runs/small is itself a run"),
    "overwriting no run": Refused(
        OVERWRITE, "is not the record of a run", before={"settings.json": '{"font": 5}'}),
    "overwriting another file's": Refused(
        OVERWRITE, "is a run of other.py, not of small.py", before=record(file="other.py")),
    "overwriting with what does not fit": Refused(OVERWRITE, "plase", 1, replaced=MISSPELT),
    "overwriting with no Python": Refused(
        OVERWRITE, "is not a Python module", replaced={"return TwoHeads()": "return TwoHeads("}),
    # ---- resuming
    "another seed": Refused(
        f"{AGAIN} --seed 4", "runs/small is trained with seed 3, which a resumed run keeps"),
    "another net": Refused(
        AGAIN, 'multifit: a resumed run keeps net, spec and trainers: undo the change, or ', 1,
        replaced={DENSE: "nn.Dense(4)"}),
    "another shape": Refused(
        AGAIN, 'parameters["kind.weight"].shape: [2, 3] in the checkpoint, [4, 3] here', 1,
        replaced={DENSE: "nn.Dense(4)"}),
    "another file's run": Refused(
        AGAIN, "runs/small is a run of big.py, not of small.py", before=record(file="big.py")),
    "no run": Refused(
        AGAIN, "runs/small is not the folder of a run: settings.json: No such",
        before={"settings.json": None}),
    "a damaged checkpoint": Refused(
        AGAIN, "net.params is missing", 1,
        before={"checkpoints/epoch-0002-step-00000006/net.params": None}),
    "devices of another machine": Refused(
        AGAIN, "--devices gpu:77: context: gpu(77) does not exist: this machine",
        before=record(devices="gpu:77")),
    # ---- what a trained run needs
    "no folder": Refused(
        "evaluate small.py --from nowhere", "nowhere is not the folder of a run: settings.json: No such"),
    "no JSON": Refused(
        EVALUATE, "runs/small/settings.json is not the record of a run: ", before={"settings.json": "{"}),
    "not a record": Refused(
        EVALUATE, "missing 6 required keyword-only arguments: 'epochs', 'devices'",
        before={"settings.json": '{"seed": 0}'}),
    "a setting of the run": Refused(
        EVALUATE, 'has no setting "width"; it has "epochs", "rate"',
        before=record(settings={"width": "5"})),
    "a seed of the run": Refused(EVALUATE, "seed must be from 0 to", before=record(seed=-1)),
    "not finished": Refused(
        EVALUATE, "runs/small has no final.params or final.pt: its run has not finished; "
        "multifit train small.py --output runs/small --resume continues it", before={"final.params": None}),
    "empty parameters": Refused(
        EVALUATE, "final.params is damaged, or holds no parameters (Check failed: ",
        before={"final.params": ""}),
    "parameters without names": Refused(EVALUATE, "have no names", before=parameters([mx.nd.zeros(3)])),
    "other parameters": Refused(
        EVALUATE, 'does not fit the net: parameters["other_weight"]: {"shape": [3]',
        before=parameters({"other_weight": mx.nd.zeros(3)})),
    "a folder as parameters": Refused(
        EVALUATE, "final.params is a folder, not a file",
        before={"final.params": None, "final.params/x": ""}),
    "no validation data": Refused(
        EVALUATE, "has no validation data", more="both = data\ndef data(seed): return both(seed)[0]\n"),
    "no engine given": Refused("check small.py --engine torch", 'engine="torch" needs PyTorch'),
    "no engine for the device": Refused("check small.py --devices cuda:0", 'engine="torch" needs PyTorch'),
    "no engine of the run": Refused(
        EVALUATE, 'engine="torch" needs PyTorch', before=record(engine="torch")),
    "no engine to resume": Refused(AGAIN, 'engine="torch" needs PyTorch', before=record(engine="torch")),
    "no onnx": Refused(f"export {OF_RUN} --format onnx", 'pip install "onnx<1.19"'),
    "no graph": Refused(
        f"export {OF_RUN}", "export: TwoHeads cannot be made a graph", 1,
        replaced={"self.place(point)\n": "self.place(point) * (len(point.shape) - 1)\n"}),
    "a report of nothing": Refused("report nowhere", "nowhere is not the folder of a run"),
    "a report in place of a file": Refused(
        "report runs/small --output runs/small/plan.txt",
        "runs/small/plan.txt exists, and is not an HTML page"),
    # ---- predicting
    "no inputs": Refused(PREDICT, 'has no function "inputs": predicting needs inputs(arguments)'),
    "an input": Refused(
        f"predict {OF_RUN} x.npy",
        "small.py cannot read INPUT: could not convert string to float: 'x.npy' (", more=INPUTS),
    "an input of a documented kind": Refused(
        f"predict {OF_RUN} x.npy", "); about its inputs(): Read rows.\n",
        more=INPUTS.replace("(arguments):\n", '(arguments):\n    """Read\n    rows.\n\n    More."""\n')),
    "a run, not an input": Refused(
        PREDICT, "its run has not finished", more="def inputs(arguments, estimator): pass\n",
        before={"final.params": None}),
    "more answers than inputs": Refused(
        PREDICT, "one text or figure for each input: 1, not 2\n",
        more=INPUTS + "def show(): return ['a', 'b']\n"),
    "a history": Refused(
        PREDICT, "cannot read runs/small/history.json: ", more=INPUTS + "def show(history): pass\n",
        before={"history.json": "{"}),
    "a parameter of show": Refused(
        NEW, '(did you mean "outputs"?)', more=INPUTS + "def show(output_s): pass\n"),
}  # fmt: skip


def change(before: Any) -> None:
    """Change files of the run."""
    if callable(before):
        before = before() or {}
    for name, content in before.items():
        path = RUN / name
        if content is None:
            path.unlink()
        elif isinstance(content, dict):
            path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)


def files() -> dict[str, bytes]:
    """Return all files but logs, which say what was refused, and locks."""
    paths = [path for path in Path().rglob("[!.]*") if path.is_file() and path.suffix != ".log"]
    return {str(path): path.read_bytes() for path in paths if path.name != "log.txt"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, trained, write, multifit, monkeypatch):
    refused = REFUSED[case]
    write(refused.more, **refused.replaced)
    if case.startswith("no engine"):
        monkeypatch.setattr(registry, "find_spec", lambda name: None)
    if case == "no onnx":
        monkeypatch.setitem(sys.modules, "onnx", None)
    change(refused.before)
    before = files()
    result = multifit(*shlex.split(refused.command))
    assert (result.code, refused.message in result.err) == (refused.code, True), result.err
    assert "Traceback" not in result.err and (
        ":\n  1. " in result.err or result.code == 1 or result.err.count("\n") == 1
    )
    assert files() == before


def test_a_folder_in_which_another_run_writes(write, multifit):
    RUN.mkdir(parents=True)
    with FileLock(RUN / ".lock"):
        result = multifit("train", write())
    assert result.code == 1 and "runs/small is in use by another run" in result.err
    assert [path.name for path in RUN.iterdir()] == [".lock"]


@pytest.mark.parametrize("error", [ValueError, ConnectionError])
def test_the_files_own_exceptions_keep_their_traceback(write, multifit, error):
    with pytest.raises(error, match="of mine"):
        multifit("train", write(f"def net(): raise {error.__name__}('of mine')\n"))


def test_an_error_of_the_net_itself_keeps_its_traceback(trained, write, multifit):
    path = write(f"{INPUTS}TwoHeads.hybrid_forward = lambda self, F, point: 1 / 0\n")
    with pytest.raises(ZeroDivisionError, match="raised in the net's forward pass"):
        multifit("predict", path, "--from", RUN, "3,0,0")
