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


def spec(losses: str, **slots: str) -> str:
    """Return a function that declares losses, and slots in place of the usual ones."""
    slots = {"inputs": '["point"]', "outputs": '["kind", "place"]', "labels": '["kind", "place"]', **slots}
    declared = ", ".join(f"{name}={value}" for name, value in slots.items())
    return f"\ndef spec():\n    return TaskSpec({declared}, losses={{{losses}}})\n"


CE, L2 = "gluon.loss.SoftmaxCrossEntropyLoss()", "gluon.loss.L2Loss()"
SCALED = {"near": "L2Loss()", "low": "L1Loss(weight=20)", "far": "L2Loss(weight=-0.5)"}
OPPOSITE = spec(
    ", ".join(f'"{name}": LossSpec(gluon.loss.{loss}, "place", "place")' for name, loss in SCALED.items()),
    unused='["kind"]',
)
LOADERS = """
def data(seed):
    point = np.random.RandomState(0).randn(40, 3).astype("float32")
    kind, place = (point[:, 0] > 0).astype("int32"), point[:, :1]
    loader = lambda *arrays: gluon.data.DataLoader(gluon.data.ArrayDataset(*arrays), 10)
"""
TURNS = LOADERS + '    return {"kind": loader(point, kind), "place": loader(point, place)}\n'
TITLE = "gradients of 2 parameters that tasks share, mean of {}: lengths, shares, and cosines with"
METHOD = "try balance=STCH(), UPGrad(normalize=True) or IMTLG()"


@pytest.fixture
def tasks(write, multifit):
    """Return a function that runs the command on a file with a shared body, for a few batches."""

    def run(more="", *options, batches=2, **replaced):
        return multifit("tasks", write(SHARED + more, **replaced), "--batches", batches, "--quiet", *options)

    return run


def test_tasks_that_agree(tasks):
    before = set(os.listdir())
    result = tasks(batches=5)
    assert result.code == 0 and set(os.listdir()) - before == {"small.py"}
    title, headers, _, kind, place, *_, advice = result.out.splitlines()
    assert title == TITLE.format("5 batches")
    assert headers.split() == ["task", "length", "share", "kind", "place", "opposed"]
    assert (kind.split()[0], kind.split()[3], place.split()[4]) == ("kind", "1.00", "1.00")
    assert kind.split()[4] == place.split()[3]
    assert advice.startswith("the sum of the losses will do")


def test_tasks_that_pull_apart_and_outweigh_each_other(tasks):
    """And features are shown where they differ."""
    out = tasks(OPPOSITE).out
    *_, apart, other, against, method, outweighs, weights = out.splitlines()
    assert (apart, other, method) == ("near and far pull apart", "low and far pull apart", METHOD)
    assert against == "a step on the sum of the losses goes against far in 100% of the batches"
    assert outweighs.startswith("low outweighs far: its gradient is ")
    assert weights.startswith("try balance=STCH(), or multiply the weight= of the losses by ")
    assert weights.endswith(", 1 for far")
    shown = out.split('a method with on="features" sees other cosines:')[1].split("\n\n")[0]
    assert "near and low" in shown and "near and far" not in shown
    only, both = (tasks(OPPOSITE, "--on", on).out for on in ("parameters", "features"))
    assert only == out.split("\na method")[0] + out[out.index("\nnear and far") :]
    shown = both.split("sees these cosines:")[1].split("\n\n")[0]
    assert [shown.count(pair) for pair in ("near and low", "near and far", "low and far")] == [1, 1, 1]


def test_the_seed_is_that_of_a_training(tasks):
    """A trainer's rhythm is left out, so that each batch is followed by an update."""
    rhythm = {'"sgd", {"learning_rate": rate})': '"sgd", {"learning_rate": rate}, every=2, accumulate=True)'}
    one, other, waits = tasks().out, tasks("", "--seed", 1).out, tasks("", **rhythm).out
    assert one == waits != other


def test_several_trainers_and_a_trainer_of_the_files_own(tasks):
    parts = """
def trainers(net):
    net.initialize()
    return {
        "body": TrainerSpec("body.*", "sgd", every=2),
        "heads": gluon.Trainer({**net.kind.collect_params(), **net.place.collect_params()}, "sgd"),
    }
"""
    assert tasks(parts).code == 0


def test_parameters_by_a_pattern(tasks):
    assert "gradients of 1 parameter that tasks share" in tasks("", "--on", "body.weight").out
    result = tasks("", "--on", "bdy.weight")
    assert result.code == 1
    assert 'on="bdy.weight" matches no parameter (did you mean "body.weight"?)' in result.err


def test_what_features_cannot_compare_is_still_compared(tasks):
    """A loss that reads arrays cannot be traced."""
    reads = "lambda place, label: (place - label).abs() * place.asnumpy().size"
    result = tasks(spec(f'"kind": {CE}, "place": {reads}'))
    assert result.code == 0 and result.out.startswith(TITLE.format("2 batches"))
    assert "\nfeatures were not compared: balance:" in result.out


def test_affinity(tasks):
    out = tasks("", "--affinity", batches=3).out
    assert "affinity: " in out and out.count("\nkind ") == 2 and "%" in out.split("\nstep on")[1]


def test_loaders_that_take_turns(tasks):
    """A loader is one task, however many losses it trains."""
    assert tasks(TURNS).out.startswith(TITLE.format("2 batches of each loader"))
    both = '    return {"up": loader(point, kind, 100 * place), "down": loader(point, kind, -place)}\n'
    out = tasks(LOADERS + both, "--set", "rate=1e-6", batches=3).out
    assert [line.split()[0] for line in out.splitlines()[3:5]] == ["up", "down"]
    assert "up and down pull apart" in out and "goes against down in 100%" in out
    assert f"{METHOD}\nwith a batch of each loader in one update: sampling=Together()" in out


def test_a_task_without_labels_has_no_figures(tasks):
    near, far = (f'LossSpec(gluon.loss.{kind}(), "place", "place")' for kind in ("L2Loss", "L1Loss"))
    result = tasks(without_kinds(f'"near": {near}, "far": {far}'), **IMPORTS)
    kind, near = result.out.splitlines()[3:5]
    assert kind.split() == ["kind", "-", "-", "1.00", "-", "-", "-"]
    assert near.split()[3:5] == ["-", "1.00"] and near.split()[2] != "100%"
    assert "kind had no gradient in any batch" in result.out and "kind outweighs" not in result.out


IMPORTS = {"import LossSpec": "import LabelSpec, LossSpec"}


def without_kinds(losses: str) -> str:
    """Return a spec of these losses, and of the kind, of which no sample has a label."""
    return spec(
        f'"kind": {CE}, {losses}', labels='[LabelSpec("kind", missing=-1), "place"]',
        batch_fn='lambda batch: {"point": batch[0], "kind": batch[1] * 0 - 1, "place": batch[2]}',
    )  # fmt: skip


BOUND = spec(f'"kind": LossSpec({CE}, trainers="trainer"), "place": {L2}')
CARRIED = spec(
    f'"kind": {CE}, "small": LossSpec({L2}, "kind", "kind")',
    inputs='["point", "place"]', labels='["kind"]', state='{"place": (0, 1)}',
)  # fmt: skip
NOTHING = "small.py: the tasks share no trained parameter"
REFUSED = {
    "one task": (
        spec(f'"kind": {CE}', unused='["place"]'),
        (),
        'there is one task, "kind", and nothing to compare',
    ),
    "only a loss": (f"\ndef spec():\n    return {L2}\n", (), "there is one task, and nothing"),
    "bound losses": (BOUND, (), 'the losses "kind" are bound to trainers: adversaries pull apart on purpose'),
    "a state": (CARRIED, (), '"place" is carried from batch to batch'),
    "affinity of turns": (TURNS, ("--affinity",), "--affinity needs all losses of a batch"),
    "features of turns": (TURNS, ("--on", "features"), "no batch has features of two tasks"),
    "nothing shared": ("", ("--on", "kind.*"), f"{NOTHING}s that match --on kind.*"),
    "no labels": (without_kinds(f'"place": {L2}'), (), "or a single one had labels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared(case, tasks):
    more, options, message = REFUSED[case]
    result = tasks(more, *options, **IMPORTS)
    assert result.code == 2 and message in result.err


def test_tasks_that_share_nothing_are_an_error(write, multifit):
    hybrid = {"return TwoHeads()": "net = TwoHeads(); net.hybridize(); return net"}
    result = multifit("tasks", write("", **hybrid))
    assert result.code == 2 and NOTHING in result.err


def test_ctrl_c(tasks):
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
    result = tasks(stopping, batches=50)
    assert result.code == 130 and "mean of 4 batches" in result.out


@pytest.mark.parametrize(
    ("file", "opposed"), [("two_digits", True), ("few_digits", False), ("diabetes", False)]
)
def test_advice_on_example_files(file, opposed, multifit):
    """By ``nightly.balance_value``, methods help on two digits, and do not on the other two."""
    path = Path(__file__).parents[2] / "tasks" / f"{file}.py"
    result = multifit("tasks", path, "--batches", 20, "--quiet", "--on", "parameters")
    assert result.code == 0 and (METHOD in result.out) == opposed
    assert ("sum outweighs right" in result.out) == opposed


BALANCE = "\ndef balance():\n    from multifit.balance import Sum\n    return Sum(every=2)\n"
CARRIES = """
class Carries(TwoHeads):
    def hybrid_forward(self, F, point, place):
        return super().hybrid_forward(F, F.concat(point, place, dim=1))

def net():
    net = Carries()
    net.hybridize()
    return net
"""


def test_a_state_is_compared_in_a_training(write, multifit):
    """As the refusal of a state says: by a balance that the file declares."""
    carried = CARRIED.replace("L2Loss()", "SoftmaxCrossEntropyLoss(weight=-1)")
    carried = carried.replace(
        "state=", 'batch_fn=lambda batch: {"point": batch[0], "kind": batch[1]}, state='
    )
    result = multifit("train", write(SHARED + BALANCE + CARRIES + carried), "--quiet")
    assert result.code == 0, result.err
    assert "train_cosine_kind_small" in Path("runs/small/history.json").read_text()
