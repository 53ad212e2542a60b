"""Which devices and kinds of nets a test runs with: all four settings, or as few as can fail differently."""

from collections.abc import Iterable
from itertools import cycle
from typing import Any

import pytest

import mxnet as mx  # isort: skip

ONE, TWO = [mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]
SETTINGS = {
    "one device": (ONE, False),
    "one device, hybridized": (ONE, True),
    "two devices": (TWO, False),
    "two devices, hybridized": (TWO, True),
}
NAMES = ("devices", "hybrid")

# For what the whole step depends on.
every_setting = pytest.mark.parametrize(NAMES, SETTINGS.values(), ids=SETTINGS.keys())
# Each device count and each kind of net once: the simplest step, and the one with the most parts.
two_settings = pytest.mark.parametrize(
    NAMES, [(ONE, False), (TWO, True)], ids=["one device", "two devices, hybridized"]
)
plain_or_hybrid = pytest.mark.parametrize("hybrid", [False, True], ids=["plain", "hybridized"])


def pairwise(name: str, cases: Iterable[Any]) -> Any:
    """Parametrize a test with cases and settings: every pair of case, device count and kind of net, once.

    Odd cases run plain on one device and hybridized on two, even ones the other way round.
    """
    settings = list(SETTINGS.items())
    pairs = [settings[0], settings[3]], [settings[1], settings[2]]
    rows = [
        pytest.param(case, *setting, id=f"{case}, {label}")
        for number, case in enumerate(cases)
        for label, setting in pairs[number % 2]
    ]
    return pytest.mark.parametrize((name, *NAMES), rows)


def in_turn(name: str, cases: Iterable[Any]) -> Any:
    """Parametrize a test with cases, each once; the four settings take turns."""
    rows = [
        pytest.param(case, *setting, id=f"{case}, {label}")
        for case, (label, setting) in zip(cases, cycle(SETTINGS.items()))
    ]
    return pytest.mark.parametrize((name, *NAMES), rows)
