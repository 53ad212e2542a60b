"""Trees are restored exactly; other values are errors, and nothing in a file is run."""

import math
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.gluon.snapshot.snapshot import MXNetTrees

import mxnet as mx  # isort: skip

TREES = MXNetTrees()
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


def content(value: Any) -> Any:
    """Return what shows whether two values are the same to the last bit."""
    if isinstance(value, mx.nd.NDArray):
        stored = [value.data, value.indices] if value.stype == "row_sparse" else []
        return value.stype, str(value.context), *map(content, [value.asnumpy(), *stored])
    if isinstance(value, np.longdouble):
        return "longdouble", repr(value)  # six of its sixteen bytes are filling, and may hold anything
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(content(key), content(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), *map(content, value)
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def ndarrays(dtype: Any) -> list[Any]:
    return [mx.nd.array([[0, 1], [1, 0]], ctx=mx.cpu(i)).astype(dtype) for i in (0, 2)]


VALUES = [
    None, True, False, 0, -7, 2**200, "", "ü \n\"{}", 0.1, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan,
    [], (), {}, [[]], ((), [()]), {"a": {1: (None, [2.5])}, -3: "x", "1": 0, 1: 2}, {"dict": 1, "array": 2},
    np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.array(1.5), np.array([True]), np.array(["ab", "c"]),
    np.array([1, -1], "float16"), np.array([2**53 + 1], "int64"), np.array([1 + 2j]), np.arange(6)[::2],
    np.float16(0.1), np.float32("nan"), np.float64(0.1), np.int64(-1), np.bool_(False), np.str_("x"),
    np.longdouble(1) / 3, np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], "uint32").view("float32"),
    *map(ndarrays, ["float16", "float32", "float64", "uint8", "int64", "bool", BFLOAT16]),
    # an optimizer may update just the rows that a gradient has
    mx.nd.array([[0, 0], [1, 2], [0, 0]], ctx=mx.cpu(1)).tostype("row_sparse"),
    mx.nd.zeros((2, 2), ctx=mx.cpu(1)).tostype("row_sparse"),
]  # fmt: skip


def test_trees_are_restored_exactly(tmp_path: Path) -> None:
    for tree in VALUES:
        for each in (tree, {"deep": [(tree, tree)]}):
            TREES.write(tmp_path, "tree", each)
            assert content(TREES.read(tmp_path, "tree")) == content(each)


REFUSED: list[tuple[Any, str]] = [
    (object(), "a builtins.object"), (lambda: 0, "a builtins.function"),
    (OrderedDict(a=1), "a collections.OrderedDict"), (np.array([None]), "a numpy.ndarray of objects"),
    (mx.nd.ones((2, 2)).tostype("csr"), "CSRNDArray"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), REFUSED)
def test_a_value_that_cannot_be_saved_is_an_error_with_its_path(
    tmp_path: Path, value: Any, kind: str
) -> None:
    match = rf"tree\.a\[1\]\.7 is .*{kind}.*cannot be saved; valid are None, bool"
    with pytest.raises(ValueError, match=match):
        TREES.write(tmp_path, "tree", {"a": [0, {7: value}]})
    for key in (1.5, True, np.int64(1)):
        with pytest.raises(ValueError, match=r"tree\.a has the key .*; valid are str and int"):
            TREES.write(tmp_path, "tree", {"a": {key: value}})
    assert not list(tmp_path.iterdir())


class Bomb:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pickle was run')",)


def test_a_missing_or_damaged_file_is_an_error_and_no_pickle_is_run(tmp_path: Path) -> None:
    structure, arrays = tmp_path / "tree.json", tmp_path / "tree.npz"
    with pytest.raises(OSError, match=r"tree\.json"):
        TREES.read(tmp_path, "tree")
    TREES.write(tmp_path, "tree", {"x": np.arange(4.0), "y": mx.nd.ones((2,))})
    text, whole = structure.read_text(), arrays.read_bytes()
    arrays.unlink()
    with pytest.raises(OSError, match=r"tree\.npz"):
        TREES.read(tmp_path, "tree")
    np.savez(arrays, **{"0": np.array([Bomb()], dtype=object)})
    with pytest.raises(SystemExit):  # it does go off where pickles are read
        np.load(arrays, allow_pickle=True)["0"]
    damaged = [arrays.read_bytes(), pickle.dumps(Bomb()), *(whole[:end] for end in range(0, len(whole), 101))]
    for content in damaged:
        arrays.write_bytes(content)
        with pytest.raises(ValueError, match=r"tree.json or its .npz is damaged"):
            TREES.read(tmp_path, "tree")
    arrays.write_bytes(whole)
    empty = '{"arrays": 0, "tree": {"%s": 0}}'
    wrong = {"[": "", "3": "", empty % "call": "", empty % "array": ""}
    wrong |= {text.replace("cpu(0)", device): "there is no device" for device in ("tpu(0)", "cpu")}
    for content, reason in wrong.items():
        structure.write_text(content)
        with pytest.raises(ValueError, match=f"tree.json or its .npz is damaged.*{reason}"):
            TREES.read(tmp_path, "tree")
