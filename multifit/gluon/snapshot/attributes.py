"""Save an object's attributes as a tree, and load them into an object of the same class.

The program creates the object, and the tree only sets its attributes: no class is looked up by a name from a
file, and nothing is called. Functions, nets, devices and locks belong to the program and are left as they
are.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import types
from collections import deque
from pathlib import PurePath
from typing import Any, Iterable, Mapping

import numpy as np

from ...errors import shown
from ..compat import mx
from .tree import DEEPEST, encode

CLASS = "class of the object"
PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE: list, int and NumPy's arrays do not have it
ARRAYS = (mx.nd.NDArray, mx.nd.sparse.RowSparseNDArray)
NUMBERS = {bool, int, float, np.bool_, np.int32, np.int64, np.float32, np.float64}
FIXED = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type,
    functools.partial, np.ufunc, np.dtype, re.Pattern, PurePath,
    logging.Logger, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()),
    mx.gluon.Block, mx.gluon.Parameter, mx.gluon.ParameterDict, mx.sym.Symbol, mx.Context,
    mx.gluon.data.Dataset, mx.gluon.data.DataLoader, mx.io.DataIter,
)  # fmt: skip


def save_attributes(
    thing: object, where: str, unsaved: list[str], skip: Iterable[str] = (), parents: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Return the attributes of a metric, an optimizer or a schedule, and of the objects in it, as a tree.

    Attributes in `skip` are left out. The names of attributes that cannot be saved are appended to `unsaved`,
    each beginning with `where`. `parents` are the ids of the objects that contain this one.
    """
    attributes = {}
    for name, value in vars(thing).items():
        if name not in skip and not isinstance(value, FIXED):
            try:
                attributes[name] = _save(value, f"{where}.{name}", unsaved, (*parents, id(thing)))
            except ValueError:
                unsaved.append(f"{where}.{name}")
    return attributes


def load_attributes(thing: object, attributes: Mapping[str, Any], where: str) -> None:
    """Set the attributes that :func:`save_attributes` returned.

    Raises ValueError if an object among the attributes is not of the class that was saved.
    """
    present = vars(thing)
    for name, value in attributes.items():
        # not setattr: values from a file must not call properties
        present[name] = _load(value, present.get(name), f"{where}.{name}")


def class_name(thing: object) -> str:
    """Return the full name of an object's class; a class of multifit is named without its module."""
    kind = type(thing)
    is_own = kind.__module__.partition(".")[0] == "multifit"
    return f"multifit.{kind.__name__}" if is_own else f"{kind.__module__}.{kind.__qualname__}"


def _save(value: Any, where: str, unsaved: list[str], parents: tuple[int, ...]) -> Any:
    """Return a value as a tree; raises ValueError if it cannot be saved."""
    if id(value) in parents or len(parents) > DEEPEST // 3:  # an object becomes two nested dicts
        raise ValueError(f"{where} contains itself, or nests too deep")
    if isinstance(value, FIXED):
        return {CLASS: None}
    inner = (*parents, id(value))
    if isinstance(value, dict):
        return {_key(k, where): _save(item, f"{where}.{k}", unsaved, inner) for k, item in value.items()}
    if isinstance(value, deque) or type(value) in (list, tuple):
        items = list(value)
        if not all(type(item) in NUMBERS for item in items):  # there can be many thousands
            items = [_save(item, f"{where}[{i}]", unsaved, inner) for i, item in enumerate(items)]
        return tuple(items) if isinstance(value, tuple) else items
    if _is_plain_object(value):
        attributes = save_attributes(value, where, unsaved, parents=parents)
        return {CLASS: class_name(value), "attributes": attributes}
    if type(value) not in ARRAYS:  # encoding would wait for the engine
        encode(value, where, [])
    return value


def _key(key: object, where: str) -> str | int:
    if not isinstance(key, (str, int, np.integer)):
        raise ValueError(f"{where} has the key {shown(key)}")
    return int(key) if isinstance(key, np.integer) else key


def _load(saved: Any, present: Any, where: str) -> Any:
    if isinstance(saved, dict) and CLASS in saved:
        if saved[CLASS] is None:
            return present
        if class_name(present) != saved[CLASS]:
            raise ValueError(
                f"{where} is a {saved[CLASS]} where it was saved, and a {class_name(present)} here"
            )
        load_attributes(present, saved["attributes"], where)
        return present
    if isinstance(saved, dict):
        old = present if isinstance(present, dict) else {}
        items = {key: _load(item, old.get(key), f"{where}.{key}") for key, item in saved.items()}
        return _refill(present, items) if isinstance(present, dict) and type(present) is not dict else items
    if isinstance(saved, (list, tuple)):
        olds = list(present) if isinstance(present, (list, tuple, deque)) else []
        olds += [None] * (len(saved) - len(olds))
        values = [_load(item, olds[i], f"{where}[{i}]") for i, item in enumerate(saved)]
        return _refill(present, values) if isinstance(present, deque) else type(saved)(values)
    return saved


def _refill(container: Any, content: Any) -> Any:
    """Replace the content of a container such as a defaultdict or a bounded deque, and return it."""
    container.clear()
    (container.update if isinstance(container, dict) else container.extend)(content)
    return container


def _is_plain_object(value: object) -> bool:
    """Whether an object's attributes are all of its state, unlike those of generators and containers."""
    kind = type(value)
    in_python = all(base.__flags__ & PYTHON_CLASS for base in kind.__mro__[:-1])
    default_pickle = kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
    return in_python and default_pickle and hasattr(value, "__dict__")
