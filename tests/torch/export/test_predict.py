"""``multifit predict`` with an exported net, where mxnet cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from multifit import DataError, MultiEstimator
from multifit.cli import main
from multifit.torch.export.load import load_export
from multifit.torch.export.predict import predict_files
from tests.gluon.export.nets import Hybrid, spec

ROOT = Path(__file__).parents[3]
WITHOUT_MXNET = """
import sys
sys.modules.update(mxnet=None, gluoncv=None, gluonnlp=None)
from multifit.__main__ import run
sys.exit(run())
"""
X = np.random.RandomState(0).rand(5, 3).astype("float32")


def two_of_two(net, F, x, y):
    return F.concat(x, y, dim=1), F.sum(x, axis=1)


@pytest.fixture(scope="module")
def estimator():
    return MultiEstimator(Hybrid(two_of_two), spec(["left", "right"], ["file", "a/b"]))


@pytest.fixture(params=["torch", "pt2"])
def exported(request, tmp_path, estimator):
    """Return a folder with a net of two inputs, whose outputs have names that files cannot have."""
    estimator.net.initialize()
    estimator.export(tmp_path / "net", [(X, X[:, :2])], format=request.param)
    return tmp_path / "net"


def write(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_the_command_works_where_mxnet_cannot_be_imported(exported, estimator, tmp_path):
    file = write(tmp_path / "batch.npz", left=X[:4].astype("float64"), right=X[:4, :2], label=X)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_MXNET, "predict", str(exported), file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    path = exported / "predictions" / "1-batch.npz"
    assert done.stdout == f"{file}: file (4, 5), a/b (4,), in {path}\n", done.stderr
    expected = estimator.predict((X[:4], X[:4, :2]))
    with np.load(path) as found:
        assert found.files == ["file", "a/b"]
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_a_program_by_its_path_into_another_folder(exported, tmp_path, capsys):
    file = write(tmp_path / "batch.npz", left=X, right=X[:, :2])
    net = exported / "net.pt2" if (exported / "net.pt2").exists() else exported
    assert (
        main(["predict", str(net), file, file, "--output", str(tmp_path / "there"), "--devices", "cpu"]) == 0
    )
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["1-batch.npz", "2-batch.npz"]
    assert capsys.readouterr().out.count("\n") == 2


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"left": X}, 'cannot use .*: it has no "right"; give a .npz file with the inputs "left", "right"'),
        ({"left": X, "right": X}, r'the input "right" has the shape \(5, 3\), not \(any, 2\)'),
        (
            {"left": X, "right": X[:, :1, None]},
            r'the input "right" has the shape \(5, 1, 1\), not \(any, 2\)',
        ),
        ({"left": X.astype("complex64"), "right": X[:, :2]}, 'the input "left" is float32, not complex64'),
        ({"left": X, "right": X[:3, :2]}, r"the net raised .* for left \(5, 3\), right \(3, 2\): "),
        ({"left": np.array([None]), "right": X}, "cannot use .*: Object arrays cannot be loaded"),
    ],
)
def test_inputs_that_do_not_fit(exported, tmp_path, arrays, message):
    file = write(tmp_path / "batch.npz", **arrays)
    with pytest.raises(DataError, match=message):
        list(predict_files(exported, [file], tmp_path))


@pytest.fixture
def one_input(tmp_path):
    """Return a folder with a net of one input."""
    estimator = MultiEstimator(Hybrid(lambda net, F, x: x + x), spec(["x"], ["twice"]))
    estimator.net.initialize()
    estimator.export(tmp_path / "net", [X], format="torch")
    return tmp_path / "net"


def test_a_single_array_is_the_one_input(one_input, tmp_path):
    np.save(tmp_path / "x.npy", X)
    list(predict_files(one_input, [str(tmp_path / "x.npy")], tmp_path))
    np.testing.assert_array_equal(np.load(tmp_path / "1-x.npz")["twice"], 2 * X)


def test_what_is_no_array(exported, tmp_path):
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(DataError, match="cannot use .*text.npy"):
        list(predict_files(exported, [str(tmp_path / "text.npy")], tmp_path))


def npz(path, compressed=False):
    (np.savez_compressed if compressed else np.savez)(path, x=X)
    return path.with_suffix(".npz").read_bytes()


def zipped(path):
    with ZipFile(path, "w") as archive:
        archive.writestr("x", "no array")
    return path.read_bytes()


def npy(path):
    np.save(path, X)
    return path.with_suffix(".npy").read_bytes()


NEITHER = "give a .npy or .npz file"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", lambda path: b"no array", NEITHER),
        ("a.npz", lambda path: b"", NEITHER),
        ("a.txt", lambda path: b"no array", NEITHER),
        ("a.npy", lambda path: npy(path)[:20], "EOF"),
        ("a.npy", lambda path: npy(path)[:-20], ""),
        ("a.npz", lambda path: npz(path)[:-20], "File is not a zip file"),
        ("a.npz", lambda path: npz(path, True).replace(b"\x00\x00\x00\x08\x00", b"\x00\x00\x00\x63\x00"), ""),
        ("a.npz", zipped, 'the input "x" is float32, not '),
    ],
)
def test_a_file_that_is_damaged_or_no_array(one_input, tmp_path, capsys, name, content, message):
    path = tmp_path / name
    path.write_bytes(content(path))
    assert main(["predict", str(one_input), str(path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"multifit: cannot use {path}: {message}") and shown.count("\n") == 1
    assert not (one_input / "predictions").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothere.pt2"], "there is no exported net: nothere.pt2"),
        (["net", "--devices", "cuda:99"], "context: 'cuda:99' is not a PyTorch device: "),
        (["net/net.py"], "cannot load net/net.py: export.json does not say what its inputs and outputs are"),
        (["empty.pt2"], "cannot load empty.pt2: it is damaged, or no program of torch.export"),
    ],
)
def test_what_cannot_be_loaded_leaves_no_folder(one_input, tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.pt2").touch()
    if arguments == ["net/net.py"]:
        change_record(one_input, inputs=None)
    np.save("a.npy", X)
    net, *options = arguments
    assert main(["predict", net, "a.npy", *options]) == 2
    shown = capfd.readouterr().err
    assert shown.startswith(f"multifit: {message}") and shown.count("\n") == 1
    assert not list(tmp_path.rglob("predictions"))


def test_a_missing_file_leaves_no_folder(one_input, capsys):
    assert main(["predict", str(one_input), "nothere.npy"]) == 2
    assert capsys.readouterr().err.endswith("No such file or directory: 'nothere.npy'\n")
    assert not (one_input / "predictions").exists()


def test_the_files_before_a_bad_one_are_predicted(one_input, tmp_path, capsys):
    good, other = (write(tmp_path / f"{name}.npz", x=X) for name in "ab")
    bad = write(tmp_path / "bad.npz", x=X[:, :2])
    assert main(["predict", str(one_input), good, other, bad]) == 2
    shown = capsys.readouterr()
    folder = one_input / "predictions"
    assert (
        shown.out
        == f"{good}: twice (5, 3), in {folder}/1-a.npz\n{other}: twice (5, 3), in {folder}/2-b.npz\n"
    )
    assert shown.err == f'multifit: cannot use {bad}: the input "x" has the shape (5, 2), not (any, 3)\n'
    assert len(list(folder.iterdir())) == 2


def change_record(folder, **values):
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


OTHER = "net.py: export.json is not of the same export: export the net again"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "net.py").write_text("1 / 0"), "ZeroDivisionError: division by zero"),
        (lambda folder: torch.save({"a": print}, folder / "net.pt"), "net.py: UnpicklingError: "),
        (lambda folder: (folder / "net.py").unlink(), "there is no exported net: "),
        (lambda folder: (folder / "net.pt").unlink(), "net.py: FileNotFoundError: .*net.pt"),
        (lambda folder: (folder / "net.pt").write_bytes(b""), "net.py: EOFError"),
        (lambda folder: change_record(folder, format="gluon"), OTHER),
        (lambda folder: (folder / "export.json").unlink(), "net.py: FileNotFoundError: .*export.json"),
        (lambda folder: (folder / "export.json").write_text(""), "net.py: .*export.json: Expecting value"),
        (lambda folder: (folder / "export.json").write_text("[]"), OTHER),
        (lambda folder: change_record(folder, inputs=[{}]), "does not say what its inputs and outputs are"),
    ],
)
def test_a_module_that_cannot_be_loaded(estimator, tmp_path, damage, message):
    estimator.net.initialize(force_reinit=True)
    estimator.export(tmp_path, [(X, X[:, :2])], format="torch")
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_export(tmp_path)


@pytest.mark.parametrize("name", ["net.py", "net.pt2"])
def test_a_folder_with_two_nets_asks_for_one(estimator, tmp_path, name, capsys):
    estimator.net.initialize()
    for format in ("torch", "pt2"):
        estimator.export(tmp_path, [(X, X[:, :2])], format=format)
    with (tmp_path / "net.py").open("a") as file:  # which may be changed
        file.write("# mine\n")
    file = write(tmp_path / "batch.npz", left=X, right=X[:, :2])
    with pytest.raises(ValueError, match="two exported nets: give the one .*net.py or .*net.pt2$"):
        load_export(tmp_path)
    assert main(["predict", str(tmp_path / name), file]) == 0
    assert capsys.readouterr().out.endswith(f"in {tmp_path / 'predictions' / '1-batch.npz'}\n")


def test_a_module_of_an_export_before_the_last_one(estimator, tmp_path):
    estimator.net.initialize()
    for format in ("torch", "gluon"):
        estimator.export(tmp_path, [(X, X[:, :2])], format=format)
    with pytest.raises(ValueError, match=OTHER):
        load_export(tmp_path)


@pytest.mark.parametrize("bytes_left", [0, 100, -100])
def test_a_program_that_was_cut_off(estimator, tmp_path, bytes_left, caplog):
    estimator.net.initialize()
    (path,) = estimator.export(tmp_path, [(X, X[:, :2])], format="pt2")
    path.write_bytes(path.read_bytes()[:bytes_left])
    caplog.clear()
    with pytest.raises(ValueError, match="net.pt2: it is damaged, or no program of torch.export"):
        load_export(tmp_path)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_a_program_that_does_not_say_what_its_inputs_are(tmp_path):
    program = torch.export.export(torch.nn.Linear(2, 1), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "net.pt2")
    with pytest.raises(ValueError, match="does not say what its inputs and outputs are"):
        load_export(tmp_path / "net.pt2")


def test_a_device_that_does_not_exist(exported):
    with pytest.raises(ValueError, match="'cuda:99' is not a PyTorch device: .*; give one device"):
        load_export(exported, "cuda:99")
