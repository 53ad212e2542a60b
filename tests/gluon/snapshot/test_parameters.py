"""Parameters are saved in Gluon's format and restored into nets in any state."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.gluon.optim.parameters import named_parameters
from multifit.gluon.snapshot import parameters as files
from multifit.gluon.snapshot.parameters import read_parameters, write_parameters
from tests.common.full_disk import full_disk
from tests.common.grids import ONE, TWO
from tests.common.nets import sequential

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip


def make(known: bool = False) -> Any:
    sizes = (6, 5, 5) if known else (0, 0, 0)
    return sequential(
        nn.Dense(5, in_units=sizes[0]), nn.BatchNorm(in_channels=sizes[1]), nn.Dense(2, in_units=sizes[2])
    )


def initialised(net: Any = None, contexts: Any = ONE) -> Any:
    net = make() if net is None else net
    net.initialize(mx.init.Normal(1.0), ctx=contexts)
    for context in contexts:
        net(mx.nd.ones((4, 6), ctx=context))
    return net


def deferred() -> Any:
    net = make()
    net.initialize(ctx=TWO)
    return net


def values(net: Any, losses: Any = ()) -> dict[str, list[list[float]]]:
    parameters = named_parameters(net, dict(losses))
    return {name: [data.asnumpy().tolist() for data in p.list_data()] for name, p in parameters.items()}


def written(folder: Path, net: Any, losses: Any = ()) -> Path:
    write_parameters(folder / "net.params", net, named_parameters(net, dict(losses)))
    return folder


@pytest.mark.parametrize("state", ["uninitialised", "deferred", "ready"])
def test_they_are_restored_into_a_net_in_any_state(tmp_path: Path, state: str) -> None:
    net = initialised()
    other = {"uninitialised": lambda: make(True), "deferred": deferred}.get(state, initialised)()
    folder = written(tmp_path, net)
    mx.random.seed(0)
    expected = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(0)
    contexts = ONE if state == "ready" else TWO
    read_parameters(folder, named_parameters(other, {}), contexts)
    assert values(other) == {name: arrays * len(contexts) for name, arrays in values(net).items()}
    assert np.array_equal(mx.nd.random.uniform(shape=(3,)).asnumpy(), expected)  # nothing was drawn


def test_the_file_has_gluons_format(tmp_path: Path) -> None:
    net, other, again = initialised(), make(), make(known=True)
    other.load_parameters(str(written(tmp_path, net) / "net.params"))
    net.save_parameters(str(tmp_path / "net.params"))
    read_parameters(tmp_path, named_parameters(again, {}), ONE)
    assert values(other) == values(again) == values(net)


def test_a_file_that_is_not_complete_is_an_error_and_not_kept(monkeypatch: Any, tmp_path: Path) -> None:
    """MXNet does not say why it could not write."""
    with pytest.raises(OSError) as caught, full_disk(500):
        written(tmp_path, initialised(nn.Dense(1000)))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "net.params"))
    assert list(tmp_path.iterdir()) == []

    def load(path: str) -> None:
        raise mx.base.MXNetError("Invalid NDArray file format")

    path = written(tmp_path, net := initialised()) / "net.params"
    before = path.read_bytes()
    monkeypatch.setattr(mx.nd, "load", load)
    with pytest.raises(OSError, match="No space left on device"):
        written(tmp_path, net)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


class Odd(nn.HybridSequential):
    """Layers that share parameters, and a parameter without a structural name."""

    def __init__(self) -> None:
        super().__init__(prefix="odd_")  # else such names count the nets that were made
        first = nn.Dense(6, in_units=6)
        self.add(first, nn.Dense(6, in_units=6, params=first.params))
        self.params.get("hidden", shape=(2,))


NETS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "one layer": (lambda: (initialised(nn.Dense(2)), {}), set()),
    "no parameters": (lambda: (nn.Flatten(), {}), set()),
    "shared": (lambda: (initialised(Odd()), {}), {"odd_hidden"}),
    "losses": (
        lambda: (initialised(), {"a": initialised(nn.Dense(1))}), {"losses.a.weight", "losses.a.bias"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "in_own_file"), NETS.values(), ids=NETS)
def test_all_parameters_are_written(make: Callable[[], Any], in_own_file: set[str], tmp_path: Path) -> None:
    one, two = make(), make()
    read_parameters(written(tmp_path, *one), named_parameters(*two), ONE)
    assert values(*one) == values(*two)
    path = tmp_path / "losses.params"
    assert set(mx.nd.load(str(path)) if path.exists() else ()) == in_own_file


def test_parameters_that_no_batch_reached_are_left_out(tmp_path: Path) -> None:
    net, other = initialised(), deferred()
    for each, contexts in ((net, ONE), (other, TWO)):
        each.add(nn.Dense(3))
        each[3].initialize(ctx=contexts)
    read_parameters(written(tmp_path, net), named_parameters(other, {}), TWO)
    assert other[3].weight._deferred_init and not other[0].weight._deferred_init


def test_equal_values_on_all_devices_are_exact_though_their_mean_is_not(tmp_path: Path) -> None:
    three = [mx.cpu(i) for i in range(3)]
    net, other = (initialised(nn.Dense(500), three) for _ in range(2))
    folder, state = written(tmp_path, net), files.save_device_state(named_parameters(net, {}), [])
    # a third of three times a float32 is not always that float32
    assert list(state["replicas"]) == ["weight"]
    read_parameters(folder, named_parameters(other, {}), three)
    files.load_device_state(named_parameters(other, {}), [], state)
    assert values(other) == values(net)
