"""What several ranks refuse, with the way out, and how all of them end when one fails."""

from typing import Any

import pytest

from multifit import (
    CheckpointHandler,
    DataError,
    LossSpec,
    MultiEstimator,
    PeerError,
    Sharded,
    SpecError,
    TaskSpec,
    TrainerError,
    TrainerSpec,
    ValidationHandler,
    WeightAveraging,
    batches,
)
from multifit.distributed import World
from tests.common.data import Repeating, regression_batches
from tests.common.joint_training import ByShape
from tests.common.ranks import run_ranks
from tests.common.specs import L2

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip

DATA = regression_batches([4, 4, 3])


def spec_of(loss: Any = L2, **options: Any) -> TaskSpec:
    losses = {"l2": LossSpec(loss, "y", "y", **options)}
    return TaskSpec(outputs=["y"], labels=["y"], losses=losses, inputs=["x"])


def estimator_of(world, spec=None, net=None, trainers=None):
    net = gluon.nn.Dense(4, in_units=6) if net is None else net
    net.initialize(ByShape(world.rank))
    return MultiEstimator(net, spec or spec_of(), trainers, world=world)


def fit(world, data=None, handlers=(), epochs=1, **options):
    estimator = estimator_of(world, **options)
    estimator.fit(DATA if data is None else data, epochs=epochs, event_handlers=list(handlers))
    return estimator


def loader_of(samples: int = 12, kind: Any = gluon.data.DataLoader, **options: Any) -> Any:
    ((x, y),) = regression_batches([samples])
    return kind(gluon.data.ArrayDataset(x, y), **options)


class Strings(gluon.data.Sampler):
    def __iter__(self) -> Any:
        return iter([["a"], ["b"]])

    def __len__(self) -> int:
        return 2


REFUSED: dict[str, tuple[Any, type, str]] = {
    "an iterator that is read once": (
        lambda w: fit(w, iter(DATA)), DataError, "is a list_iterator, whose batches cannot be divided"),
    "an iterator that shuffles": (
        lambda w: fit(w, mx.io.ResizeIter(mx.io.NDArrayIter(*DATA[0], 2, shuffle=True), 3)), DataError,
        r"train_data is a ResizeIter that shuffles, in another order in every process; .*Sharded"),
    "other batches": (
        lambda w: fit(w, DATA[w.rank :]), DataError, "the loader's first batch is not the same on all ranks"),
    "a loader that shuffles and iterates in its own way": (
        lambda w: fit(w, loader_of(kind=Repeating, batch_size=4, shuffle=True)), DataError,
        "first batch is not the same on all ranks, .*; give Gluon's or PyTorch's own DataLoader"),
    "fewer batches": (
        lambda w: fit(w, DATA[: 3 - w.rank]), DataError, "numbers of batches: 3 on rank 0, 2 on rank 1; "),
    "an iterator that ends earlier": (
        lambda w: fit(w, mx.io.NDArrayIter(*[array[: 4 - 2 * w.rank] for array in DATA[0]], 2)), DataError,
        "the loader ended on rank 1, and yields more"),
    "other data sets": (
        lambda w: fit(w, loader_of(12 + w.rank, batch_size=4)), DataError,
        "different numbers of samples: 12 on rank 0, 13 on rank 1"),
    "other arrays": (
        lambda w: fit(w, batches(*[array[: 4 - w.rank] for array in DATA[0]])), DataError,
        "different numbers of samples: 4 on rank 0, 3 on rank 1"),
    "samples without numbers": (
        lambda w: fit(w, loader_of(batch_sampler=Strings())), DataError, "sampler yields str"),
    "fewer samples than ranks": (
        lambda w: fit(w, [tuple(array[:1] for array in DATA[0])]), DataError,
        "the first batch has 1 sample for 2 processes, each of which needs one"),
    "a part without batches": (
        lambda w: fit(w, Sharded(DATA[:1] if w.first else DATA[:0])), DataError, "train_data is empty"),
    "other specs": (
        lambda w: fit(w, spec=spec_of(weight=1.0 + w.rank)), SpecError,
        r'losses\["l2"\].weight: 1.0 on rank 0, 2.0 on rank 1'),
    "other nets": (
        lambda w: fit(w, net=gluon.nn.Dense(4, in_units=6, use_bias=not w.rank)), SpecError,
        r'parameters\["bias"\]: .* on rank 0, not on rank 1'),
    "shapes that the data decides": (
        lambda w: fit(w, Sharded([(x[:, : 6 - w.rank], y) for x, y in DATA]), net=gluon.nn.Dense(4)),
        SpecError, r"weight: \(4, 6\) float32 on rank 0, \(4, 5\) float32 on rank 1"),
    "other trainers": (
        lambda w: fit(w, trainers=TrainerSpec(".*", ("sgd", "adam")[w.rank])), SpecError,
        r'trainers\["trainer"\].optimizer: "SGD" on rank 0, "Adam" on rank 1'),
    "other limits": (
        lambda w: fit(w, epochs=1 + w.rank), SpecError, "limits.epochs: 1 on rank 0, 2 on rank 1"),
    "other handlers": (
        lambda w: fit(w, handlers=[WeightAveraging()] * w.first), SpecError,
        r'handlers\["WeightAveraging"\]: .* on rank 0, not on rank 1'),
    "other options of a handler": (
        lambda w: fit(w, handlers=[WeightAveraging(decay=0.5), WeightAveraging(decay=0.5 + 0.3 * w.rank)]),
        SpecError, r'handlers\["WeightAveraging#2"\].decay: "0.5" on rank 0, "0.8" on rank 1'),
    "sparse gradients": (
        lambda w: fit(w, [(x[:, 0], y) for x, y in DATA], net=gluon.nn.Embedding(5, 4, sparse_grad=True)),
        TrainerError,
        "gradients are sparse and cannot be added up over processes; build .* sparse_grad=False"),
    "find_learning_rate": (
        lambda w: estimator_of(w).find_learning_rate(DATA), RuntimeError, "in one process, and 2 train"),
    "profile": (lambda w: estimator_of(w).profile(DATA), RuntimeError, "profile works in one process"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_do_is_refused_on_all_of_them(name):
    function, kind, message = REFUSED[name]
    errors = run_ranks(2, function)
    assert any(isinstance(error, kind) for error in errors), errors
    for error in errors:
        if not isinstance(error, PeerError):
            with pytest.raises(kind, match=message):
                raise error


def test_validation_data_and_folders_may_be_others_on_each_rank(tmp_path):
    def validated(world):
        folder, data = tmp_path / str(world.rank), (DATA, tuple(DATA))[world.rank]
        return fit(world, handlers=[ValidationHandler(data), CheckpointHandler(folder)])

    for estimator in run_ranks(2, validated):
        assert isinstance(estimator, MultiEstimator), estimator


def test_a_distributed_kvstore_is_refused():
    net = gluon.nn.Dense(4, in_units=6)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync")
    with pytest.raises(TrainerError, match='kvstore="dist_sync" adds up .* leave kvstore= out, and give'):
        MultiEstimator(net, spec_of(), trainer).fit(DATA, epochs=1)


class Bug:
    """Raises on the last rank, in one of the places where users' code runs."""

    def __init__(self, world: World, place: str) -> None:
        self.place = place if world.rank else None
        self.calls = 0

    def at(self, place: str) -> None:
        self.calls += place == self.place
        if self.calls == 3:
            raise RuntimeError(f"{place} has a bug")

    def batch_end(self, estimator: Any, **_: Any) -> None:
        self.at("handler")

    def loss(self, pred: Any, label: Any) -> Any:
        self.at("loss")
        return L2(pred, label)

    def loader(self) -> Any:
        for batch in DATA:
            self.at("loader")
            yield batch

    def __iter__(self) -> Any:
        return self.loader()


@pytest.mark.parametrize("place", ["handler", "loss", "loader"])
def test_all_ranks_end_if_one_fails(place):
    def train(world):
        bug = Bug(world, place)
        fit(world, bug, [bug], spec=spec_of(bug.loss), epochs=2)

    first, second = run_ranks(2, train)
    assert isinstance(first, PeerError) and str(second) == f"{place} has a bug"
