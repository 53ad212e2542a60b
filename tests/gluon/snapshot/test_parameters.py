"""Parameters are saved in Gluon's format and restored into nets in any state."""

import errno
from typing import Any

import numpy as np
import pytest

from multifit.gluon.optim.parameters import named_parameters
from multifit.gluon.snapshot import parameters as files
from multifit.gluon.snapshot.parameters import read_parameters, write_parameters
from tests.common.full_disk import full_disk
from tests.common.grids import ONE, TWO

import mxnet as mx  # isort: skip
from mxnet.gluon import nn  # isort: skip

BATCH = np.random.RandomState(0).randn(4, 6).astype("float32")


def make(known: bool = False) -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6 if known else 0), nn.BatchNorm(in_channels=5 if known else 0))
    net.add(nn.Dense(2, in_units=5 if known else 0))
    return net


def initialised(contexts: Any = ONE, net: Any = None) -> Any:
    net = make() if net is None else net
    net.initialize(mx.init.Normal(1.0), ctx=contexts)
    for context in contexts:
        net(mx.nd.array(BATCH, ctx=context))
    return net


def values(net: Any, losses: Any = ()) -> dict[str, list[list[float]]]:
    parameters = named_parameters(net, dict(losses))
    return {name: [data.asnumpy().tolist() for data in p.list_data()] for name, p in parameters.items()}


def written(tmp_path, net: Any, losses: Any = ()) -> Any:
    write_parameters(tmp_path / "net.params", net, named_parameters(net, dict(losses)))
    return tmp_path


def deferred() -> Any:
    net = make()
    net.initialize(ctx=TWO)
    return net


HERE = {"uninitialised": lambda: make(known=True), "deferred": deferred, "ready": lambda: initialised(TWO)}


@pytest.mark.parametrize("here", HERE.values(), ids=HERE)
def test_they_are_restored_into_a_net_in_any_state(tmp_path, here):
    net = initialised()
    folder, other = written(tmp_path, net), here()
    mx.random.seed(0)
    expected = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(0)
    read_parameters(folder, named_parameters(other, {}), TWO)
    assert values(other) == {name: arrays * 2 for name, arrays in values(net).items()}
    assert np.array_equal(mx.nd.random.uniform(shape=(3,)).asnumpy(), expected)  # nothing was drawn


def test_the_file_has_gluons_format(tmp_path):
    net, other = initialised(), make()
    other.load_parameters(str(written(tmp_path, net) / "net.params"))
    assert values(other) == values(net)
    net.save_parameters(str(tmp_path / "net.params"))
    again = make(known=True)
    read_parameters(tmp_path, named_parameters(again, {}), [mx.cpu()])
    assert values(again) == values(net)
    assert not (tmp_path / "losses.params").exists()


def test_a_file_that_is_not_complete_is_an_error_and_not_kept(monkeypatch, tmp_path):
    def load(path):
        raise mx.base.MXNetError("Invalid NDArray file format")

    net = initialised()
    path = written(tmp_path, net) / "net.params"
    before = path.read_bytes()
    monkeypatch.setattr(mx.nd, "load", load)
    with pytest.raises(OSError, match="No space left on device"):
        written(tmp_path, net)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_the_reason_of_the_disk_is_told(tmp_path):
    """MXNet does not say why it could not write."""
    net = initialised(net=nn.Dense(1000))
    with pytest.raises(OSError) as caught, full_disk(500):
        written(tmp_path, net)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "net.params"))
    assert list(tmp_path.iterdir()) == []


def test_a_net_of_one_layer_and_one_without_parameters(tmp_path):
    one, two = initialised(net=nn.Dense(2)), initialised(net=nn.Dense(2))
    read_parameters(written(tmp_path, one), named_parameters(two, {}), [mx.cpu()])
    assert values(one) == values(two)
    none = nn.Flatten()
    read_parameters(written(tmp_path, none), named_parameters(none, {}), [mx.cpu()])


def test_shared_parameters_and_those_without_a_structural_name(tmp_path):
    class Odd(nn.HybridSequential):
        def __init__(self) -> None:
            super().__init__(prefix="odd_")  # else such names count the nets that were made
            first = nn.Dense(6, in_units=6)
            self.add(first, nn.Dense(6, in_units=6, params=first.params))
            self.params.get("hidden", shape=(2,))

    one, two = initialised(net=Odd()), initialised(net=Odd())
    read_parameters(written(tmp_path, one), named_parameters(two, {}), [mx.cpu()])
    assert values(one) == values(two)
    assert list(mx.nd.load(str(tmp_path / "losses.params"))) == ["odd_hidden"]


def test_losses_have_their_own_file(tmp_path):
    one, two = ((initialised(), {"a": initialised(net=nn.Dense(1))}) for _ in range(2))
    read_parameters(written(tmp_path, *one), named_parameters(*two), [mx.cpu()])
    assert values(*one) == values(*two)
    assert set(mx.nd.load(str(tmp_path / "losses.params"))) == {"losses.a.weight", "losses.a.bias"}


def test_parameters_that_no_batch_reached_are_left_out(tmp_path):
    net, other = initialised(), deferred()
    for each, contexts in ((net, ONE), (other, TWO)):
        each.add(nn.Dense(3))
        each[3].initialize(ctx=contexts)
    read_parameters(written(tmp_path, net), named_parameters(other, {}), TWO)
    assert other[3].weight._deferred_init and not other[0].weight._deferred_init


def test_equal_values_on_all_devices_are_exact_though_their_mean_is_not(tmp_path):
    three = [mx.cpu(i) for i in range(3)]
    net, other = initialised(three, net=nn.Dense(500)), initialised(three, net=nn.Dense(500))
    folder, state = written(tmp_path, net), files.save_device_state(named_parameters(net, {}), [])
    # a third of three times a float32 is not always that float32
    assert list(state["replicas"]) == ["weight"]
    read_parameters(folder, named_parameters(other, {}), three)
    files.load_device_state(named_parameters(other, {}), [], state)
    assert values(other) == values(net)
