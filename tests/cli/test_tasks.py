"""``multifit tasks`` prints which tasks pull together and which apart; nothing is written."""

import os
import signal

SHARED = """
class TwoHeads(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.place = nn.Dense(8), nn.Dense(2), nn.Dense(1)

    def hybrid_forward(self, F, point):
        features = self.body(point)
        return self.kind(features), self.place(features)

def net():
    net = TwoHeads()
    net.hybridize()
    return net
"""
OPPOSITE = """
def spec():
    return TaskSpec(
        inputs=["point"], outputs=["kind", "place"], labels=["kind", "place"], unused=["kind"],
        losses={
            "near": LossSpec(gluon.loss.L2Loss(), "place", "place"),
            "low": LossSpec(gluon.loss.L1Loss(weight=20), "place", "place"),
            "far": LossSpec(gluon.loss.L2Loss(weight=-0.5), "place", "place"),
        },
    )
"""


def test_tasks_that_agree(write, multifit):
    before = set(os.listdir())
    result = multifit("tasks", write(SHARED), "--batches", 5, "--quiet")
    assert result.code == 0
    title, headers, _, kind, place, *_ = result.out.splitlines()
    assert title == "gradients where the tasks branch, mean of 5 batches"
    assert headers.split() == ["task", "norm", "share", "cosine", "with", "kind", "cosine", "with", "place"]
    assert (kind.split()[0], kind.split()[3], place.split()[4]) == ("kind", "1", "1")
    assert kind.split()[4] == place.split()[3]
    assert set(os.listdir()) - before == {"small.py"}


def test_tasks_that_pull_apart_and_outweigh_each_other(write, multifit):
    result = multifit("tasks", write(SHARED + OPPOSITE), "--batches", 2)
    assert "near and far pull apart: try a method that compares gradients, such as UPGrad" in result.out
    assert "low outweighs far: try weights, or a method that scales, such as GradNorm" in result.out


def test_a_task_without_labels_has_no_figures(write, multifit):
    spec = """
def spec():
    return TaskSpec(
        inputs=["point"], outputs=["kind", "place"],
        labels=[LabelSpec("kind", missing=-1), "place"],
        batch_fn=lambda batch: {"point": batch[0], "kind": batch[1] * 0 - 1, "place": batch[2]},
        losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss(), "place": gluon.loss.L2Loss()},
    )
"""
    imports = {"import LossSpec": "import LabelSpec, LossSpec"}
    result = multifit("tasks", write(SHARED + spec, **imports), "--batches", 2, "--quiet")
    kind, place = result.out.splitlines()[3:5]
    assert kind.split() == ["kind", "-", "-", "1", "-"]
    assert (place.split()[2], place.split()[3:]) == ("100%", ["-", "1"])
    assert "kind had no gradient in any batch" in result.out and "outweighs" not in result.out


def test_tasks_that_share_nothing_are_an_error(write, multifit):
    result = multifit(
        "tasks", write("", **{"return TwoHeads()": "net = TwoHeads(); net.hybridize(); return net"})
    )
    assert result.code == 1 and "the tasks share no parameter" in result.err
    assert "multifit tasks sets balance= itself, to compare gradients: 1 problem" in result.err


def test_ctrl_c(write, multifit):
    """The table has the batches so far."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    stopping = """
import signal
both = data
def data(seed):
    train, val = both(seed)
    class Stops:
        def __iter__(self):
            yield from train
            signal.raise_signal(signal.SIGINT)
            yield from train
    return Stops(), val
"""
    result = multifit("tasks", write(SHARED + stopping), "--batches", 50, "--quiet")
    assert result.code == 130 and "mean of 4 batches" in result.out


def test_a_file_may_declare_a_balance(write, multifit):
    balance = "\ndef balance():\n    from multifit.balance import GLS\n    return GLS()\n"
    result = multifit("train", write(SHARED + balance), "--quiet")
    assert result.code == 0
    with open("runs/small/history.json") as file:
        assert "train_weight_kind" in file.read()
