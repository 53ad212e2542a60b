"""Trees are restored exactly; other values are errors, and nothing in a file is run."""

import json
import math
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from multifit.gluon.snapshot.snapshot import MXNetTrees

import mxnet as mx  # isort: skip

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


def again(tmp_path, tree: Any) -> Any:
    MXNetTrees().write(tmp_path, "tree", tree)
    return MXNetTrees().read(tmp_path, "tree")


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, mx.nd.NDArray):
        return a.context == b.context and same(a.asnumpy(), b.asnumpy())
    if isinstance(a, np.longdouble):
        return a == b  # six of its sixteen bytes are filling, and may hold anything
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return a == b


PLAIN = [
    None, True, False, 0, -7, 2**200, "", "ü \n\"{}", 0.1, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan,
    [], (), {}, [[]], ((), [()]), {"a": {1: (None, [2.5])}, -3: "x", "1": 0, 1: 2}, {"dict": 1, "array": 2},
]  # fmt: skip
ARRAYS = [
    np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.array(1.5), np.array([True]), np.array(["ab", "c"]),
    np.array([1, -1], "float16"), np.array([2**53 + 1], "int64"), np.array([1 + 2j]), np.arange(6)[::2],
    np.float16(0.1), np.float32("nan"), np.float64(0.1), np.int64(-1), np.bool_(False), np.str_("x"),
    np.longdouble(1) / 3, np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], "uint32").view("float32"),
]  # fmt: skip


@pytest.mark.parametrize("tree", [*PLAIN, *ARRAYS], ids=lambda tree: repr(tree)[:30])
def test_a_tree_is_restored_exactly(tmp_path, tree):
    assert same(again(tmp_path, tree), tree)
    assert same(again(tmp_path, {"deep": [(tree, tree)]}), {"deep": [(tree, tree)]})


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "uint8", "int64", "bool", BFLOAT16], ids=str
)
def test_an_ndarray_is_restored_on_its_device(tmp_path, dtype):
    values = np.array([[0, 1], [1, 0]])
    tree = [mx.nd.array(values, ctx=mx.cpu(i)).astype(dtype) for i in (0, 2)]
    assert same(again(tmp_path, tree), tree)


@pytest.mark.parametrize("rows", [[[0, 0], [1, 2], [0, 0]], [[0, 0], [0, 0]]], ids=["one row", "none"])
def test_sparse_rows_are_restored(tmp_path, rows):
    """An optimizer may update just the rows that a gradient has."""
    array = mx.nd.array(rows, ctx=mx.cpu(1)).tostype("row_sparse")
    restored = again(tmp_path, [array])[0]
    assert same(restored, array)
    assert same(restored.indices.asnumpy(), array.indices.asnumpy())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "a builtins.object"),
        (lambda: 0, "a builtins.function"),
        (OrderedDict(a=1), "a collections.OrderedDict"),
        (np.array([None]), "a numpy.ndarray of objects"),
        (mx.nd.ones((2, 2)).tostype("csr"), "CSRNDArray"),
    ],
    ids=["object", "function", "subclass", "objects", "csr"],
)
def test_a_value_that_cannot_be_saved_is_an_error_with_its_path(tmp_path, value, said):
    valid = r"tree\.a\[1\]\.7 is .*cannot be saved; valid are None, bool"
    with pytest.raises(ValueError, match=valid) as error:
        MXNetTrees().write(tmp_path, "tree", {"a": [0, {7: value}]})
    assert said in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", [1.5, True, np.int64(1)])
def test_keys_are_strings_or_integers(tmp_path, key):
    with pytest.raises(ValueError, match=r"tree\[0\] has the key .*; valid are str and int"):
        MXNetTrees().write(tmp_path, "tree", [{key: 1}])


def test_a_missing_file_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="tree.json"):
        MXNetTrees().read(tmp_path, "tree")
    MXNetTrees().write(tmp_path, "tree", np.ones(3))
    (tmp_path / "tree.npz").unlink()
    with pytest.raises(OSError, match="tree.npz"):
        MXNetTrees().read(tmp_path, "tree")


@pytest.mark.parametrize(
    "structure", ['{"arrays": 0, "tree": {"call": 1}}', '{"arrays": 0, "tree": {"array": 0}}', "[", "3"]
)
def test_a_damaged_structure_is_an_error(tmp_path, structure):
    (tmp_path / "tree.json").write_text(structure)
    with pytest.raises(ValueError, match="tree.json or its .npz is damaged"):
        MXNetTrees().read(tmp_path, "tree")


@pytest.mark.parametrize("device", ["tpu(0)", "cpu"])
def test_an_unknown_device_is_an_error(tmp_path, device):
    MXNetTrees().write(tmp_path, "tree", mx.nd.ones((2,)))
    content = json.loads((tmp_path / "tree.json").read_text())
    content["tree"]["on"] = device
    (tmp_path / "tree.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="there is no device"):
        MXNetTrees().read(tmp_path, "tree")


class Bomb:
    """Ends the process when it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pickle was run')",)


def test_a_pickle_in_an_array_file_is_not_run(tmp_path):
    MXNetTrees().write(tmp_path, "tree", np.ones(3))
    np.savez(tmp_path / "tree.npz", **{"0": np.array([Bomb()], dtype=object)})
    with pytest.raises(SystemExit):  # it does go off where pickles are read
        np.load(tmp_path / "tree.npz", allow_pickle=True)["0"]
    with pytest.raises(ValueError, match="is damaged"):
        MXNetTrees().read(tmp_path, "tree")
    (tmp_path / "tree.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is damaged"):
        MXNetTrees().read(tmp_path, "tree")


def test_every_truncation_is_an_error(tmp_path):
    tree = {"x": np.arange(4.0), "y": mx.nd.ones((2,))}
    MXNetTrees().write(tmp_path, "tree", tree)
    whole = (tmp_path / "tree.npz").read_bytes()
    for end in range(0, len(whole), 101):
        (tmp_path / "tree.npz").write_bytes(whole[:end])
        with pytest.raises(ValueError, match="is damaged"):
            MXNetTrees().read(tmp_path, "tree")
