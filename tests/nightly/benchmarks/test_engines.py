"""Both engines and a loop in PyTorch train the same net."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
import torch

from nightly import gpu
from nightly.benchmarks import engines
from nightly.benchmarks.engine_child import SUBJECTS, idle_share
from nightly.benchmarks.torch_loop import hand_written
from nightly.benchmarks.torch_nets import torch_net

import mxnet as mx  # isort: skip


@pytest.mark.parametrize("name", ["2 heads", "LeNet", "ResNet18 thumbnail", "tiny FCN, mean IoU", "SSD"])
def test_a_net_of_torch_computes_what_gluons_does(name):
    case = SUBJECTS[name]
    net, image = case.net(), case.batches()[0][0][:4]
    with mx.autograd.train_mode():
        expected = net(image)
    expected = expected if isinstance(expected, (list, tuple)) else [expected]
    found = torch_net(net).train()(torch.from_numpy(image.asnumpy()))
    for ours, theirs in zip(found if isinstance(found, tuple) else [found], expected):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.asnumpy(), rtol=1e-2, atol=1e-3)


def test_the_loop_has_the_objective_of_multifit():
    case = SUBJECTS["2 heads"]
    history = case.estimator().fit(case.batches(), epochs=2)
    epoch = hand_written(case, torch.device("cpu"))
    assert [epoch(), epoch()] == pytest.approx(history["train_loss"], rel=1e-4)


def test_idle_time_is_what_no_interval_covers():
    assert idle_share([], 10) == 1
    assert idle_share([(5, 7), (0, 2), (1, 3), (1, 2)], 10) == pytest.approx(0.5)


def test_a_table_of_both_engines():
    (row,) = engines.measure(next(case for case in engines.CASES if str(case) == "MLP"), 1)
    assert row.values.keys() == {"multifit", "MXNet as engine", engines.HAND}
    assert row.ratios().keys() == {"/ MXNet as engine", f"/ {engines.HAND}"}


def test_a_case_that_an_engine_refuses(capsys):
    nmt = next(case for case in engines.CASES if str(case) == "NMT")
    with engines.ExitStack() as stack:
        children, refused = engines.opened(stack, nmt, {engines.HAND: {"engine": "hand"}})
    assert not children and "does not know" in refused[engines.HAND]


def test_the_report_of_a_gpu(tmp_path):
    report = gpu.Report(tmp_path, {"device": "a GPU"})
    times = {"multifit": [0.2], "multifit, compiled": [0.1], engines.HAND: [0.4]}
    rows = list(gpu._rows("MLP, float32", times, 2))
    assert [(row.case, row.ratios()) for row in rows] == [
        ("MLP, float32", {f"/ {engines.HAND}": [0.5]}),
        ("MLP, float32, compiled", {f"/ {engines.HAND}": [0.25]}),
    ]
    shares = [{"case": "MLP, float32", "contender": "multifit", "memory": 12.0, "idle": None}]
    report.add(rows, shares, {"NMT": "it is refused"})
    text = report.path.read_text()
    assert (
        "a GPU" in text and "| MLP, float32 | multifit | 12 |  |" in text and "* NMT: it is refused" in text
    )
