"""Both engines and a loop in PyTorch train the same net."""

import json
from contextlib import nullcontext
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
import torch

from nightly import gpu
from nightly.benchmarks import engines
from nightly.benchmarks.engine_child import SUBJECTS
from nightly.benchmarks.results import PRECISIONS, TARGETS
from nightly.benchmarks.torch_loop import hand_written
from nightly.benchmarks.torch_nets import torch_net
from nightly.benchmarks.torch_translation import Translation
from nightly.gpu_report import Report

import mxnet as mx  # isort: skip


@pytest.mark.parametrize("name", ["2 heads", "ResNet18 thumbnail", "SSD"])
def test_a_net_of_torch_computes_what_gluons_does(name):
    case = SUBJECTS[name]
    net, image = case.net(), case.batches()[0][0][:4].astype("float64")
    net.cast("float64")  # in float32, BatchNorm over few values multiplies differences in rounding
    with mx.autograd.train_mode():
        expected = net(image)
    mx.nd.waitall()  # a weight that is read while an operator uses it may be transposed
    expected = expected if isinstance(expected, (list, tuple)) else [expected]
    found = torch_net(net).double().train()(torch.from_numpy(image.asnumpy()))
    for ours, theirs in zip(found if isinstance(found, tuple) else [found], expected):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.asnumpy(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "figures", "tolerance"),
    [
        ("2 heads", ["loss", "head0", "head1", "head0_accuracy", "head1_accuracy"], 1e-5),
        ("tiny FCN, mean IoU", ["loss", "cross_entropy", "metric.pixAcc", "metric.mIoU"], 1e-5),
        ("SSD", ["loss", "multibox.cls", "multibox.box"], 5e-3),  # it chooses hard negatives
        ("NMT", ["loss", "translation"], 2e-3),
    ],
)
def test_the_loop_has_the_figures_of_multifit(name, figures, tolerance):
    case = SUBJECTS[name]
    history = case.estimator().fit(case.batches(), epochs=2)
    epoch = hand_written(case, torch.device("cpu"))
    for at in range(2):
        expected = [history[f"train_{each}"][at] for each in figures]
        assert epoch() == pytest.approx(expected, rel=tolerance)


def test_a_table_of_both_engines():
    (row,) = engines.measure(next(case for case in engines.CASES if str(case) == "MLP"), 1)
    assert row.values.keys() == set(engines.CONTENDERS)
    assert row.ratios().keys() == {"/ MXNet as engine", f"/ {engines.HAND}"}


def test_translation_in_pytorch():
    case = SUBJECTS["NMT"]
    net, (source, target, length, valid, _) = case.net(), case.batches()[0]
    with mx.autograd.train_mode():
        expected = net(source, target, length, valid)[0].asnumpy()
    words = [torch.from_numpy(slot.asnumpy()).long() for slot in (source, target)]
    found = Translation(net)(*words, torch.from_numpy(length.asnumpy())).detach().numpy()
    held = np.arange(expected.shape[1]) < valid.asnumpy()[:, None]
    np.testing.assert_allclose(found[held], expected[held], atol=1e-5)


def test_who_is_missing_from_a_table(monkeypatch):
    """Who is refused, whose process ends, and who trains another net."""
    answers = {"refuses": {"refused": "no"}, "other": [1.0, 2.1], "alike": [1.0, 2.001], "hand": [1.0, 2.0]}

    class Child(nullcontext):
        def __init__(self, command):
            super().__init__(self)
            self.engine = json.loads(command[-1])["engine"]

        def ask(self):
            if self.engine not in answers:
                raise RuntimeError("it ended:\nno memory")
            return answers[self.engine]

    monkeypatch.setattr(engines, "Child", Child)
    contenders = {each: {"engine": each} for each in ("refuses", "ends", "other", "alike")}
    with engines.ExitStack() as stack:
        case = SUBJECTS["NMT"]
        children, missing = engines.opened(stack, case, {**contenders, engines.HAND: {"engine": "hand"}})
    assert children.keys() == {"alike", engines.HAND}
    assert missing == {
        "refuses": "no",
        "ends": "it ended: no memory",
        "other": "its loss is 2.1 after an epoch, that of PyTorch by hand 2",
    }


def test_the_report_of_a_gpu(tmp_path):
    report = Report(tmp_path, {"device": "a GPU"})
    times = {"multifit": [0.2], "multifit, compiled": [0.1], engines.HAND: [0.4]}
    rows = list(gpu._rows("gpu", "SSD, float32", times, 2))
    assert [(row.case, row.ratios()) for row in rows] == [
        ("SSD, float32", {f"/ {engines.HAND}": [0.5]}),
        ("SSD, float32, compiled", {f"/ {engines.HAND}": [0.25]}),
    ]
    case = {"case": "SSD, float32", "idle": None}
    shares = [{**case, "contender": "multifit", "memory": 12.0}, {**case, "contender": "x", "memory": None}]
    report.add(rows, shares, {"NMT": "it is refused"})
    text = report.path.read_text()
    assert text.startswith("# PyTorch on a GPU, ") and "1 of 1 are met" in text
    assert text.endswith(
        "## Peak memory, MiB\n\n|  | multifit |\n| --- | --: |\n| SSD, float32 | 12 |\n\n"
        "## Not measured\n\n* NMT: it is refused\n"
    )


def test_every_target_of_a_gpu_belongs_to_a_figure():
    figures = set()
    for case in gpu.CASES:
        for precision in PRECISIONS:
            times = {each: [1.0] for each in (*gpu.OPTIONS, engines.HAND, f"{engines.HAND}, compiled")}
            rows = gpu._rows("gpu", f"{case}, {precision}", times, 1)
            figures.update((row.table, row.case, figure) for row in rows for figure in row.ratios())
    targets = {target[:3] for target in TARGETS if target.table == "gpu"}
    assert targets and targets <= figures


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steps", "--device", "cuda:99"], "'cuda:99' is not a PyTorch device"),
        (["step", "--device", "cpu"], 'there is no part "step"; parts are "steps", "rows"'),
        (["--device", "cpu", "--case", "nmt", "SDD"], 'no case begins with "sdd"; cases are "2 heads", '),
    ],
)
def test_what_there_is_not_to_measure(arguments, message, capsys):
    with pytest.raises(SystemExit):
        gpu.main(arguments)
    assert message in capsys.readouterr().err
