"""Attributes are restored into an object of the same class, and nothing else is."""

from __future__ import annotations

import enum
import random
import threading
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest

from multifit.gluon.snapshot.attributes import load_attributes, save_attributes
from multifit.gluon.snapshot.tree import read_tree, write_tree

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


class Thing:
    """Anything with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Other(Thing):
    """Another class."""


class Sub(list):
    """A list with attributes."""


class Colour(enum.Enum):
    RED = 1


def copied(tmp_path, old: Any, new: Any) -> Any:
    unsaved: list[str] = []
    write_tree(tmp_path, "thing", save_attributes(old, "old", unsaved))
    assert unsaved == []
    load_attributes(new, read_tree(tmp_path, "thing"), "new")
    return new


def test_values_are_restored(tmp_path):
    old = Thing(
        a=1, b=[0.5, (None, "x")], c={1: {"k": [True]}}, d=np.arange(3), e=np.float32(0.1), f=mx.nd.ones((2,))
    )
    new = vars(copied(tmp_path, old, Thing(a=0, z=7)))
    assert {name: new[name] for name in "abcez"} == {**{n: vars(old)[n] for n in "abce"}, "z": 7}
    assert new["d"].tolist() == [0, 1, 2]
    assert new["f"].asnumpy().tolist() == [1, 1]


def test_containers_of_special_kinds_keep_their_kind(tmp_path):
    counts, lists, last, order = (
        defaultdict(int),
        defaultdict(list),
        deque([1, 2, 3], maxlen=3),
        OrderedDict(b=1, a=2),
    )
    counts[np.int64(3)] = 2
    lists[np.int64(3)] += [np.float32(0.5)] * 40
    new = Thing(counts=defaultdict(int), lists=defaultdict(list), last=deque(maxlen=3), order=OrderedDict())
    copied(tmp_path, Thing(counts=counts, lists=lists, last=last, order=order), new)
    assert new.counts == {3: 2}
    assert new.counts[9] == 0
    assert new.lists == {3: [0.5] * 40}
    assert type(new.lists[3][0]) is np.float32
    assert new.lists[9] == []
    assert (new.last, new.last.maxlen) == (deque([1, 2, 3]), 3)
    assert new.order == order


def test_objects_among_the_attributes_are_filled_in_place(tmp_path):
    inner, held = Thing(x=1), [Thing(x=2), {"k": Thing(x=3)}, (Thing(x=4),)]
    new = Thing(inner=Thing(x=0), held=[Thing(x=0), {"k": Thing(x=0)}, (Thing(x=0),)])
    same = new.inner
    copied(tmp_path, Thing(inner=inner, held=held), new)
    assert new.inner is same
    assert [same.x, new.held[0].x, new.held[1]["k"].x, new.held[2][0].x] == [1, 2, 3, 4]


def test_functions_nets_and_locks_are_left_alone(tmp_path):
    lock, net = threading.Lock(), nn.Dense(1)
    new = Thing(function=len, lock=lock, net=net, context=mx.cpu(1), mixed=[len, 0])
    old = Thing(function=max, lock=threading.Lock(), net=nn.Dense(2), context=mx.cpu(), mixed=[max, 5])
    copied(tmp_path, old, new)
    assert (new.function, new.lock, new.net, new.context, new.mixed) == (len, lock, net, mx.cpu(1), [len, 5])


def test_an_object_with_hidden_state_is_reported():
    loop: list[Any] = []
    loop.append(loop)
    held = {
        "set": {1}, "bytes": b"x", "random": random.Random(0), "numpy": np.random.RandomState(0),
        "sub": Sub([1]), "colour": Colour.RED, "loop": loop, "objects": np.array([None]), "keys": {(1, 2): 3},
        "sparse": mx.nd.ones((2, 2)).tostype("csr"),
    }  # fmt: skip
    unsaved: list[str] = []
    assert (
        save_attributes(Thing(fine=1, inner=Thing(**held), skipped={1}), "t", unsaved, ["skipped"])["fine"]
        == 1
    )
    assert sorted(unsaved) == sorted(f"t.inner.{name}" for name in held)
    itself = Thing()
    itself.itself = itself
    unsaved.clear()
    save_attributes(itself, "t", unsaved)
    assert unsaved == ["t.itself"]


def test_objects_deep_in_each_other_are_reported(tmp_path):
    deep = Thing(x=1)
    for _ in range(30):
        deep = Thing(inner=deep)
    unsaved: list[str] = []
    write_tree(tmp_path, "t", save_attributes(deep, "t", unsaved))
    assert len(unsaved) == 1 and unsaved[0].startswith("t.inner.inner.")


@pytest.mark.parametrize("here", [Other(x=0), None, 3])
def test_an_object_of_another_class_is_refused(here):
    saved = save_attributes(Thing(inner=[Thing(x=1)]), "old", [])
    with pytest.raises(ValueError, match=r"new\.inner\[0\] is a .*Thing where it was saved, and a .* here"):
        load_attributes(Thing(inner=[here] if here else []), saved, "new")


def test_no_property_is_called():
    class Guarded:
        reached = False

        @property
        def value(self) -> int:
            return 0

        @value.setter
        def value(self, value: int) -> None:
            Guarded.reached = True

    thing = Guarded()
    load_attributes(thing, {"value": 1, "__class__": 2}, "thing")
    assert not Guarded.reached
    assert type(thing) is Guarded
