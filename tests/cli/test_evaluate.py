"""``multifit evaluate`` measures what was trained, with the settings that it was trained with."""

import io
import sys
from pathlib import Path

import pytest

from multifit.gluon.compat import mx
from multifit.utils.output import Output

from .results import figures_of, history_of

LEARNED = """
import mxnet as mx
class Learned(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.s = self.params.get("s", shape=(1,), init=mx.init.Zero())
    def hybrid_forward(self, F, out, label, s):
        return F.broadcast_add(F.broadcast_mul(F.exp(-s), F.mean((out - label) ** 2, axis=1)), s)
"""


def test_it_measures_what_training_measured_last(trained, multifit):
    result = multifit("evaluate", trained, "--from", "runs/small", "--quiet")
    expected = {name[4:]: values[-1] for name, values in history_of().items() if name.startswith("val_")}
    assert result.code == 0 and figures_of(result.out) == pytest.approx(expected, rel=1e-4)


def test_losses_with_parameters(write, multifit):
    path, losses = write(LEARNED, **{"gluon.loss.L2Loss()": "Learned()"}), Path("runs/small/losses.params")
    evaluate = "evaluate", path, "--from", "runs/small", "--quiet"
    assert multifit("train", path).code == 0
    last = history_of()["val_place"][-1]
    assert figures_of(multifit(*evaluate).out)["place"] == pytest.approx(last, rel=1e-4)
    assert [*mx.nd.load(str(losses))] == ["losses.place.s"]
    one = mx.nd.ones((1,))
    for why, damage in {
        "is damaged": lambda: losses.write_bytes(b"x"),
        "have no names": lambda: mx.nd.save(str(losses), [one]),
        '(did you mean "losses.place.z"?)': lambda: mx.nd.save(str(losses), {"losses.place.z": one}),
        "there is no": losses.unlink,
    }.items():
        damage()
        result = multifit(*evaluate)
        assert result.code == 2 and why in result.err and "runs/small" in result.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_figures_that_a_full_disk_has_lost_are_an_error(trained, multifit, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sys, "stdout", Output(io.TextIOWrapper(full, write_through=True)))
        result = multifit("evaluate", trained, "--from", "runs/small", "--quiet")
    assert (result.code, result.err) == (2, "multifit: cannot write the output: No space left on device\n")
