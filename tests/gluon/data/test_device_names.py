"""parse_devices reads devices given as text."""

import pytest

from multifit.gluon.compat import mx
from multifit.gluon.data.devices import parse_devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("2", [mx.cpu(0), mx.cpu(1)]),
        ("cpu", [mx.cpu(0)]),
        ("cpu:2", [mx.cpu(0), mx.cpu(1)]),
        (" CPU:1 ", [mx.cpu(0)]),
        ("gpu", [mx.gpu(0)]),
        ("gpu:0,1", [mx.gpu(0), mx.gpu(1)]),
        ("gpu:3", [mx.gpu(3)]),
    ],
)
def test_valid_device_names(text, devices):
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["", " ", "tpu", "cpu:0", "0", "-1", "cpu:0,1", "gpu:0,", "gpu:0,0", "2.5"])
def test_an_invalid_device_name_is_an_error(text):
    with pytest.raises(ValueError, match="write a number of CPUs") as caught:
        parse_devices(text)
    assert repr(text) in str(caught.value)
