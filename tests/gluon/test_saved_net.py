"""A net's file of parameters; tests/cli/test_evaluate.py has what the commands say of wrong ones."""

from __future__ import annotations

import pytest

from multifit.gluon import saved_net
from multifit.gluon.compat import mx


def test_a_file_that_is_not_complete_is_an_error_and_not_kept(monkeypatch, tmp_path):
    def load(path):
        raise mx.base.MXNetError("Invalid NDArray file format")

    net, path = mx.gluon.nn.Dense(1, in_units=1), tmp_path / "net.params"
    net.initialize()
    saved_net.save_net(net, path)
    before = path.read_bytes()
    monkeypatch.setattr(mx.nd, "load", load)
    with pytest.raises(OSError, match="No space left on device"):
        saved_net.save_net(net, path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
