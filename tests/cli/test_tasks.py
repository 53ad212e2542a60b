"""``multifit tasks`` prints which tasks pull together and which apart; nothing is written."""

import os
import signal
from pathlib import Path

import pytest

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


TURNS = """
def data(seed):
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1]
    loader = lambda *arrays: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), 10)
    return {"kind": loader(point, kind), "place": loader(point, place)}
"""
TITLE = "gradients of 2 parameters that tasks share, mean of {}: lengths, shares, and cosines with"
METHOD = "try balance=STCH(), UPGrad(normalize=True) or IMTLG()"


def test_tasks_that_agree(write, multifit):
    before = set(os.listdir())
    result = multifit("tasks", write(SHARED), "--batches", 5, "--quiet")
    assert result.code == 0
    title, headers, _, kind, place, *_, advice = result.out.splitlines()
    assert title == TITLE.format("5 batches")
    assert headers.split() == ["task", "length", "share", "kind", "place", "opposed"]
    assert (kind.split()[0], kind.split()[3], place.split()[4]) == ("kind", "1.00", "1.00")
    assert kind.split()[4] == place.split()[3]
    assert advice.startswith("the sum of the losses will do")
    assert set(os.listdir()) - before == {"small.py"}


def test_tasks_that_pull_apart_and_outweigh_each_other(write, multifit):
    result = multifit("tasks", write(SHARED + OPPOSITE), "--batches", 2)
    *_, apart, other, against, method, outweighs, weights = result.out.splitlines()
    assert (apart, other, method) == ("near and far pull apart", "low and far pull apart", METHOD)
    assert against == "a step on the sum of the losses goes against far in 100% of the batches"
    assert outweighs.startswith("low outweighs far: its gradient is ")
    assert weights.startswith("try balance=STCH(), or multiply the weight= of the losses by ")
    assert weights.endswith(", 1 for far")


def test_the_seed_is_that_of_a_training(write, multifit):
    """A trainer's rhythm is left out, so that each batch is followed by an update."""
    rhythm = {'"sgd", {"learning_rate": rate})': '"sgd", {"learning_rate": rate}, every=2, accumulate=True)'}
    results = [
        multifit("tasks", write(SHARED, **replaced), "--quiet", "--batches", 3, *options).out
        for replaced, options in [({}, []), ({}, ["--seed", 1]), (rhythm, [])]
    ]
    assert results[0] == results[2] != results[1]


def test_several_trainers_and_a_trainer_of_the_files_own(write, multifit):
    parts = """
def trainers(net):
    net.initialize()
    return {
        "body": TrainerSpec("body.*", "sgd", every=2),
        "heads": gluon.Trainer({**net.kind.collect_params(), **net.place.collect_params()}, "sgd"),
    }
"""
    assert multifit("tasks", write(SHARED + parts), "--quiet", "--batches", 3).code == 0


def test_features_are_shown_where_they_differ(write, multifit):
    result = multifit("tasks", write(SHARED + OPPOSITE), "--batches", 2, "--quiet")
    assert 'a method with on="features" sees other cosines:' in result.out
    assert (
        "near and low" in result.out
        and "near and far" not in result.out.split("other cosines")[1].split("\n\n")[0]
    )
    only, both = (
        multifit("tasks", write(SHARED + OPPOSITE), "--batches", 2, "--quiet", "--on", on).out
        for on in ("parameters", "features")
    )
    assert only == result.out.split("\na method")[0] + result.out[result.out.index("\nnear and far") :]
    shown = both.split("sees these cosines:")[1].split("\n\n")[0]
    assert [shown.count(pair) for pair in ("near and low", "near and far", "low and far")] == [1, 1, 1]


def test_parameters_by_a_pattern(write, multifit):
    result = multifit("tasks", write(SHARED), "--batches", 2, "--quiet", "--on", "body.weight")
    assert "gradients of 1 parameter that tasks share" in result.out
    result = multifit("tasks", write(SHARED), "--on", "bdy.weight")
    assert (
        result.code == 1
        and 'on="bdy.weight" matches no parameter (did you mean "body.weight"?)' in result.err
    )
    result = multifit("tasks", write(SHARED), "--on", "kind.*", "--quiet")
    assert result.code == 2 and "the tasks share no trained parameter" in result.err


def test_what_features_cannot_compare_is_still_compared(write, multifit):
    """A loss that reads arrays cannot be traced."""
    untraced = """
def spec():
    def far(place, label):
        assert place.asnumpy().size
        return (place - label).abs()
    return TaskSpec(
        inputs=["point"], outputs=["kind", "place"], labels=["kind", "place"],
        losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss(), "place": far},
    )
"""
    result = multifit("tasks", write(SHARED + untraced), "--batches", 2, "--quiet")
    assert result.code == 0 and result.out.startswith(TITLE.format("2 batches"))
    assert "\nfeatures were not compared: balance:" in result.out


def test_loaders_that_take_turns(write, multifit):
    result = multifit("tasks", write(SHARED + TURNS), "--batches", 3, "--quiet")
    assert result.out.startswith(TITLE.format("3 batches of each loader"))


def test_affinity(write, multifit):
    result = multifit("tasks", write(SHARED), "--batches", 3, "--affinity", "--quiet")
    assert "affinity: " in result.out and result.out.count("\nkind ") == 2
    assert "%" in result.out.split("\nstep on")[1]


def test_loaders_that_train_the_same_losses(write, multifit):
    """A loader is one task, however many losses it trains."""
    data = (
        TURNS[: TURNS.index("    return")]
        + """
    return {"up": loader(point, kind, 100 * place), "down": loader(point, kind, -place)}
"""
    )
    slow = "--set", "rate=1e-6"
    result = multifit("tasks", write(SHARED + data), "--batches", 3, "--quiet", *slow)
    assert [line.split()[0] for line in result.out.splitlines()[3:5]] == ["up", "down"]
    assert "up and down pull apart" in result.out and "goes against down in 100%" in result.out
    assert f"{METHOD}\nwith a batch of each loader in one update: sampling=Together()" in result.out


ONE = """
def spec():
    return TaskSpec(inputs=["point"], outputs=["kind", "place"], labels=["kind", "place"],
                    losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss()}, unused=["place"])
"""
BOUND = """
def spec():
    kind = LossSpec(gluon.loss.SoftmaxCrossEntropyLoss(), trainers="trainer")
    return TaskSpec(inputs=["point"], outputs=["kind", "place"], labels=["kind", "place"],
                    losses={"kind": kind, "place": gluon.loss.L2Loss()})
"""
CARRIED = """
def net():
    net = TwoHeads()
    net.hybridize()
    return net

def spec():
    return TaskSpec(inputs=["point", "place"], outputs=["kind", "place"], labels=["kind"],
                    state={"place": (0, 1)}, losses={"kind": gluon.loss.SoftmaxCrossEntropyLoss(),
                            "small": LossSpec(gluon.loss.L2Loss(), "kind", "kind")})
"""
REFUSED = {
    "one task": (ONE, (), 'small.py: there is one task, "kind", and nothing to compare it with'),
    "only a loss": ("\ndef spec():\n    return gluon.loss.L2Loss()\n", (), "there is one task, and nothing"),
    "bound losses": (BOUND, (), 'the losses "kind" are bound to trainers: adversaries pull apart on purpose'),
    "a state": (CARRIED, (), '"place" is carried from batch to batch'),
    "affinity of turns": (TURNS, ("--affinity",), "--affinity needs all losses of a batch"),
    "features of turns": (TURNS, ("--on", "features"), "no batch has features of two tasks"),
    "nothing shared": (
        SHARED,
        ("--on", "kind.*"),
        "the tasks share no trained parameters that match --on kind.*",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared(case, write, multifit):
    more, options, message = REFUSED[case]
    result = multifit("tasks", write(SHARED + more), *options)
    assert result.code == 2 and message in result.err


IMPORTS = {"import LossSpec": "import LabelSpec, LossSpec"}


def without_kinds(losses: str) -> str:
    """Return a spec of these losses, and of the kind, of which no sample has a label."""
    return f"""
def spec():
    return TaskSpec(
        inputs=["point"], outputs=["kind", "place"],
        labels=[LabelSpec("kind", missing=-1), "place"],
        batch_fn=lambda batch: {{"point": batch[0], "kind": batch[1] * 0 - 1, "place": batch[2]}},
        losses={{"kind": gluon.loss.SoftmaxCrossEntropyLoss(), {losses}}},
    )
"""


def test_a_task_without_labels_has_no_figures(write, multifit):
    spec = without_kinds('"place": gluon.loss.L2Loss()')
    result = multifit("tasks", write(SHARED + spec, **IMPORTS), "--batches", 2, "--quiet")
    assert result.code == 2 and "or a single one had labels" in result.err


def test_a_third_task_without_labels_has_no_figures(write, multifit):
    near, far = (f'LossSpec(gluon.loss.{kind}(), "place", "place")' for kind in ("L2Loss", "L1Loss"))
    spec = without_kinds(f'"near": {near}, "far": {far}')
    result = multifit("tasks", write(SHARED + spec, **IMPORTS), "--batches", 2, "--quiet")
    kind, near = result.out.splitlines()[3:5]
    assert kind.split() == ["kind", "-", "-", "1.00", "-", "-", "-"]
    assert near.split()[3:5] == ["-", "1.00"] and near.split()[2] != "100%"
    assert "kind had no gradient in any batch" in result.out and "kind outweighs" not in result.out


def test_tasks_that_share_nothing_are_an_error(write, multifit):
    hybrid = {"return TwoHeads()": "net = TwoHeads(); net.hybridize(); return net"}
    result = multifit("tasks", write("", **hybrid))
    assert result.code == 2 and "small.py: the tasks share no trained parameter" in result.err


def test_ctrl_c(write, multifit):
    """The table has the batches so far."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    stopping = """
import signal
from pathlib import Path
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


@pytest.mark.parametrize(
    ("file", "opposed"), [("two_digits", True), ("few_digits", False), ("diabetes", False)]
)
def test_advice_on_example_files(file, opposed, multifit):
    """By ``nightly.balance_value``, methods help on two digits, and do not on the other two."""
    pytest.importorskip("sklearn")
    path = Path(__file__).parents[2] / "tasks" / f"{file}.py"
    result = multifit("tasks", path, "--batches", 20, "--quiet", "--on", "parameters")
    assert result.code == 0 and (METHOD in result.out) == opposed
    assert ("sum outweighs right" in result.out) == opposed


def test_a_state_is_compared_in_a_training(write, multifit):
    """As the refusal of a state says."""
    carries = """
from multifit.balance import Sum
class Carries(TwoHeads):
    def hybrid_forward(self, F, point, place):
        return super().hybrid_forward(F, F.concat(point, place, dim=1))

def net():
    net = Carries()
    net.hybridize()
    return net

def balance():
    return Sum(every=2)
"""
    spec = CARRIED[CARRIED.index("def spec") :].replace("L2Loss()", "SoftmaxCrossEntropyLoss(weight=-1)")
    spec = spec.replace("state=", 'batch_fn=lambda batch: {"point": batch[0], "kind": batch[1]}, state=')
    result = multifit("train", write(SHARED + carries + spec), "--quiet")
    assert result.code == 0, result.err
    assert "train_cosine_kind_small" in Path("runs/small/history.json").read_text()
