"""A net's file of parameters; tests/cli/test_evaluate.py has what the commands say of wrong ones."""

import errno

import pytest

from multifit.gluon import saved_net
from multifit.gluon.compat import mx
from tests.common.full_disk import full_disk


def test_a_file_that_is_not_complete_is_an_error_and_not_kept(monkeypatch, tmp_path):
    def load(path):
        raise mx.base.MXNetError("Invalid NDArray file format")

    arrays, path = {"a": mx.nd.ones(1)}, tmp_path / "net.params"
    saved_net.save_arrays(arrays, path)
    before = path.read_bytes()
    monkeypatch.setattr(mx.nd, "load", load)
    with pytest.raises(OSError, match="No space left on device"):
        saved_net.save_arrays(arrays, path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_the_reason_of_the_disk_is_told(tmp_path):
    """MXNet does not say why it could not write."""
    with pytest.raises(OSError) as caught, full_disk(500):
        saved_net.save_arrays({"a": mx.nd.ones(1000)}, tmp_path / "a.params")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "a.params"))
    assert list(tmp_path.iterdir()) == []
