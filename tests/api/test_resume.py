"""A resumed fit ends bit for bit as it would have without the stop, or is refused with the reason."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

import numpy as np
import pytest

from multifit import (
    CheckpointHandler,
    EarlyStoppingHandler,
    Every,
    LossSpec,
    MetricSpec,
    MultiEstimator,
    SpecError,
    TaskSpec,
    TrainerSpec,
)
from multifit.checkpoints import newest_checkpoint
from multifit.gluon.data.seeding import seed_everything
from multifit.handlers.plateau import PlateauHandler

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SAMPLES, BATCH = 36, 8  # five batches an epoch, the last one of 4
BATCHES, EPOCHS = 5, 3


class Net(gluon.HybridBlock):
    """Two heads on a body with dropout and BatchNorm."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(width, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3))
        self.digit = nn.Dense(3)
        self.size = nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        features = self.body(image)
        return self.digit(features), self.size(features)


class Distance(mx.metric.EvalMetric):
    """A metric that is computed on the host, and keeps more than sums."""

    def __init__(self) -> None:
        super().__init__("distance")

    def reset(self) -> None:
        super().reset()
        self.seen: list[float] = []

    def update(self, labels: Any, preds: Any) -> None:
        for label, pred in zip(labels, preds):
            self.seen += np.abs(label.asnumpy() - pred.asnumpy()).ravel().tolist()

    def get(self) -> tuple[str, float]:
        return self.name, float(np.median(self.seen)) if self.seen else float("nan")


def make_spec(**changes: Any) -> TaskSpec:
    declared: dict[str, Any] = {
        "inputs": ["image"],
        "outputs": ["digit", "size"],
        "labels": ["digit", "size"],
        "losses": {
            "digit": gluon.loss.SoftmaxCrossEntropyLoss(),
            "size": LossSpec(gluon.loss.L2Loss(), weight=0.5),
        },
        "metrics": {
            "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
            "distance": MetricSpec(Distance(), "size", "size", mode="min"),
        },
    }
    return TaskSpec(**{**declared, **changes})


def make_trainers() -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.02)
    return {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}, schedule, clip_norm=1.0),
        "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    }


def samples(count: int = SAMPLES) -> tuple[np.ndarray, ...]:
    generator = np.random.RandomState(0)
    image = generator.randn(count, 6).astype("float32")
    return image, image[:, :3].argmax(axis=1).astype("float32"), image[:, 3:4] * 2


class Cards:
    """A sampler that shuffles its last order again, as gluonnlp's FixedBucketSampler does."""

    def __init__(self) -> None:
        self.order = np.arange(SAMPLES)

    def __iter__(self) -> Iterator[Any]:
        np.random.shuffle(self.order)
        return iter([self.order[i : i + BATCH].copy() for i in range(0, SAMPLES, BATCH)])

    def __len__(self) -> int:
        return BATCHES


class Noisy:
    """An iterable that augments its samples with NumPy's, Python's and MXNet's generators."""

    def __iter__(self) -> Iterator[Any]:
        image, digit, size = samples()
        for i in np.random.permutation(BATCHES):
            part = slice(i * BATCH, (i + 1) * BATCH)
            noise = mx.nd.random.normal(shape=image[part].shape) * np.random.rand()
            yield mx.nd.array(image[part]) + noise, mx.nd.array(digit[part]), mx.nd.array(size[part])


class Augmented(gluon.data.ArrayDataset):
    """Samples augmented in the loader's workers, with NumPy's, Python's and MXNet's generators."""

    def __getitem__(self, index: int) -> Any:
        image, *labels = super().__getitem__(index)
        noise = mx.nd.random.normal(shape=image.shape).asnumpy() * np.random.rand()
        return (image + random.random() * noise, *labels)


def augmented(shuffle: bool) -> Any:
    return gluon.data.DataLoader(Augmented(*samples()), BATCH, shuffle=shuffle, num_workers=2)


def loader(**options: Any) -> Any:
    dataset = gluon.data.ArrayDataset(*samples())
    return gluon.data.DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, **options})


def data_iter(**options: Any) -> Any:
    image, digit, size = samples()
    labels = {"digit": digit, "size": size}
    return mx.io.NDArrayIter({"image": image}, labels, BATCH, shuffle=True, **options)


def plain_list() -> Any:
    return [tuple(column[i : i + BATCH] for column in samples()) for i in range(0, SAMPLES, BATCH)]


DATA: dict[str, Callable[[], Any]] = {
    "loader": loader,
    "iter": data_iter,
    "list": plain_list,
    "noisy": Noisy,
    "cards": lambda: gluon.data.DataLoader(gluon.data.ArrayDataset(*samples()), batch_sampler=Cards()),
    "loader with rollover": lambda: loader(last_batch="rollover"),
    "iter with roll_over": lambda: data_iter(last_batch_handle="roll_over"),
    "processes": lambda: loader(num_workers=2),
    "augmenting processes": lambda: augmented(shuffle=True),
    "augmenting processes, in order": lambda: augmented(shuffle=False),
}


class Crash(RuntimeError):
    """Stands for a power cut."""


class CrashAt:
    """Raises at an event of a step, after CheckpointHandler or before it."""

    def __init__(self, step: int, moment: str = "batch_end", priority: float = 9000.0) -> None:
        self.step, self.priority = step, priority
        setattr(self, moment, self._raise)

    def train_begin(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def _raise(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            raise Crash


class SignalAt(CrashAt):
    """Ctrl-C at a step."""

    def _raise(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            signal.raise_signal(signal.SIGINT)


class Run:
    """A training, built for each fit as a new process would build it."""

    def __init__(self, folder: Path, data: str = "loader", devices: int = 1) -> None:
        self.folder, self.data, self.devices = folder, data, devices
        self.every: Any = Every(2, "batch")
        self.trainers: Callable[[], Any] = make_trainers
        self.spec: Callable[[], Any] = make_spec
        self.net: Callable[[], Any] = Net
        self.handlers: Callable[[], list[Any]] = list
        self.estimator: Any = None
        self.loader: Any = None

    def build(self) -> Any:
        seed_everything(0)
        self.loader = DATA[self.data]()
        contexts = [mx.cpu(i) for i in range(self.devices)]
        self.estimator = MultiEstimator(self.net(), self.spec(), self.trainers(), contexts)
        return self.estimator

    def fit(self, *more: Any, resume: Any = None, **limits: Any) -> Any:
        self.build()
        if resume is not None:
            seed_everything(99)  # as a new process may have drawn other numbers
        validation = [tuple(column[:12] for column in samples())]
        checkpoints = CheckpointHandler(self.folder, self.every, seed=7)
        return self.estimator.fit(
            self.loader,
            validation,
            **(limits or {"epochs": EPOCHS}),
            event_handlers=[*self.handlers(), checkpoints, *more],
            resume=resume,
        )

    def crash(self, *arguments: Any, **options: Any) -> None:
        with pytest.raises(Exception) as caught:
            self.fit(CrashAt(*arguments), **options)
        assert isinstance(caught.value.__cause__, Crash)

    def resume(self, *more: Any, **limits: Any) -> Any:
        return self.fit(*more, resume=self.folder, **limits)

    def everything(self) -> dict[str, Any]:
        """Return everything that must be equal after a resumed fit; parameters and states as bytes."""
        return {
            **everything(self.estimator),
            "history": self.estimator.history.to_json(),
            "rates": self.estimator.learning_rates(),
            "state": self.estimator.state.to_dict(),
            "reason": self.estimator.state.stop_reason,
        }


def everything(estimator: Any) -> dict[str, bytes]:
    found = parameters(estimator)
    for name, trainer in estimator.trainers.items():
        for number, updater in enumerate(trainer._updaters):
            for i, state in updater.states.items():
                leaves = state if isinstance(state, tuple) else (state,)
                found[f"{name}/{number}/{i}"] = b"".join(
                    leaf.asnumpy().tobytes() for leaf in leaves if leaf is not None
                )
    return found


def parameters(estimator: Any) -> dict[str, bytes]:
    return {
        f"{name}@{data.context}": data.asnumpy().tobytes()
        for name, p in estimator.parameters.items()
        for data in p.list_data()
    }


def unequal(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **two} if name not in one or name not in two or one[name] != two[name]]


WHOLE: dict[Any, dict[str, Any]] = {}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Return ``run(data="loader", devices=1)``."""
    return lambda *arguments, **options: Run(tmp_path / "run", *arguments, **options)


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return ``whole(data="loader", devices=1)``: the end of the same run without a stop; trained once."""

    def end(data: str = "loader", devices: int = 1) -> dict[str, Any]:
        if (data, devices) not in WHOLE:
            uninterrupted = Run(tmp_path_factory.mktemp("whole"), data, devices)
            uninterrupted.fit()
            WHOLE[data, devices] = uninterrupted.everything()
        return WHOLE[data, devices]

    return end


# -------------------------------------------------------------------------------- bit for bit


@pytest.mark.parametrize(
    ("data", "devices", "step"),
    [
        ("loader", 1, 1),  # before the first checkpoint
        ("loader", 1, 4),  # at a checkpoint
        ("loader", 2, 12),
        ("iter", 1, 5),  # at an epoch's last batch
        ("iter", 2, 11),
        ("list", 2, 3),
        ("list", 1, 10),  # where an epoch ends with a checkpoint
    ],
)
def test_it_ends_bit_for_bit_as_without_the_stop(
    run: Any, whole: Any, data: str, devices: int, step: int
) -> None:
    stopped = run(data, devices)
    stopped.crash(step)
    stopped.resume()
    assert stopped.estimator.state.step == EPOCHS * BATCHES
    assert unequal(stopped.everything(), whole(data, devices)) == []


@pytest.mark.parametrize("data", sorted(set(DATA) - {"loader", "iter", "list"}))
def test_it_does_so_with_every_kind_of_loader(run: Any, whole: Any, data: str) -> None:
    stopped = run(data)
    stopped.crash(7)
    stopped.resume()
    assert unequal(stopped.everything(), whole(data)) == []


@pytest.mark.parametrize(
    ("moment", "step", "priority"),
    [
        ("batch_begin", 6, 0.0),
        ("batch_end", 6, 0.0),  # before the checkpoint would be written
        ("evaluate_batch_end", 5, 0.0),
        ("epoch_end", 10, 9000.0),
        ("epoch_begin", 10, 9000.0),
        ("train_end", 15, 0.0),
    ],
)
def test_it_can_be_stopped_at_every_event(
    run: Any, whole: Any, moment: str, step: int, priority: float
) -> None:
    stopped = run()
    stopped.crash(step, moment, priority)
    stopped.resume()
    assert unequal(stopped.everything(), whole()) == []


def test_workers_that_cannot_be_seeded_are_logged(
    run: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(gluon.data.DataLoader):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    said = "the loader's workers cannot be seeded"
    for name, kind, expected in (("own", Own, True), ("stock", gluon.data.DataLoader, False)):
        data = gluon.data.ArrayDataset(*samples())
        monkeypatch.setitem(DATA, name, lambda k=kind, d=data: k(d, BATCH, num_workers=1))
        stopped = run(name)
        stopped.crash(3, epochs=1)
        before = len(log())
        stopped.resume(epochs=1)
        assert any(line.startswith(said) for line in log()[before:]) == expected
        shutil.rmtree(stopped.folder)


def test_it_can_be_stopped_several_times(run: Any, whole: Any) -> None:
    stopped = run()
    stopped.crash(3)
    for step in (3, 8, 13):
        stopped.crash(step, resume=stopped.folder)
    stopped.resume()
    assert unequal(stopped.everything(), whole()) == []


def test_with_a_schedule_of_epochs(run: Any) -> None:
    uninterrupted, stopped = run(), run()
    uninterrupted.folder, uninterrupted.every = uninterrupted.folder.with_name("other"), 1
    uninterrupted.fit()
    stopped.every = 1
    stopped.crash(8)
    stopped.resume()
    assert unequal(stopped.everything(), uninterrupted.everything()) == []


def test_the_states_of_handlers_are_restored(run: Any) -> None:
    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=3, min_delta=100, restore_best=True),
            PlateauHandler("val_loss", factor=0.5, patience=2, min_delta=100),
        ]

    ends = []
    for name, step in (("whole", None), ("stopped", 17)):
        each = run("list")
        each.folder, each.handlers = each.folder.with_name(name), handlers
        if step is not None:
            each.crash(step, epochs=9)
        each.fit(epochs=9, resume=None if step is None else each.folder)
        ends.append(each.everything())
    assert "val_loss has not improved" in ends[0]["reason"] and ends[0]["state"]["step"] == 4 * BATCHES
    assert ends[0]["rates"]["lr_heads"] == 0.05
    assert unequal(*ends) == []


def test_stopped_by_a_number_of_batches(run: Any, whole: Any) -> None:
    stopped = run()
    stopped.fit(batches=8)
    stopped.resume(batches=EPOCHS * BATCHES)
    expected = {**whole(), "reason": f"{EPOCHS * BATCHES} batches"}
    assert unequal(stopped.everything(), expected) == []


def test_more_epochs_than_before(run: Any, whole: Any, log: Any) -> None:
    stopped = run()
    stopped.fit(epochs=2)
    stopped.resume()
    assert unequal(stopped.everything(), whole()) == []
    assert "resuming from epoch-0002-step-00000010: epoch 3" in log()


def test_no_sample_is_loaded_twice(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    class Numbered(gluon.data.ArrayDataset):
        def __getitem__(self, index: int) -> Any:
            asked[-1].append(int(index))
            return super().__getitem__(index)

    def numbered() -> Any:
        asked.append([])
        return gluon.data.DataLoader(Numbered(*samples()), BATCH, shuffle=True)

    monkeypatch.setitem(DATA, "numbered", numbered)
    stopped = run("numbered")
    stopped.crash(4)
    stopped.resume(epochs=1)
    assert sorted(asked[0] + asked[1]) == list(range(SAMPLES))


# -------------------------------------------------------------------------------- outside the schedule


def steady() -> TaskSpec:
    return make_spec(metrics={})


def standing() -> TrainerSpec:
    return TrainerSpec(".*", "sgd", {"learning_rate": 0.0})


class Straight(gluon.HybridBlock):
    """Without dropout and BatchNorm, at a rate of 0, the order does not change an epoch's figures."""

    def __init__(self) -> None:
        super().__init__()
        self.digit, self.size = nn.Dense(3), nn.Dense(1)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        return self.digit(image), self.size(image)


@pytest.mark.parametrize("every", [None, 1, Every(2, "batch")], ids=["none", "epochs", "batches"])
def test_ctrl_c_within_an_epoch(run: Any, log: Any, every: Any) -> None:
    stopped = run()
    stopped.spec, stopped.trainers, stopped.net, stopped.every = steady, standing, Straight, every
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped.fit(SignalAt(8, priority=-1))
    assert stopped.estimator.state.stop_reason == "SIGINT" and stopped.estimator.state.step == 8
    stopped.fit(SignalAt(13, priority=-1), resume=stopped.folder)
    assert stopped.estimator.state.step == 13
    history = stopped.resume()
    assert stopped.estimator.state.step == EPOCHS * BATCHES
    exact = every is not None and every != 1
    said = [line for line in log() if "not bit for bit" in line]
    assert len(said) == (2 if exact else 4)  # once when it was written, once when it was read
    # each epoch measured every sample once
    assert history["train_loss"] == pytest.approx([history["train_loss"][0]] * EPOCHS, rel=1e-6)


# -------------------------------------------------------------------------------- where it is not resumed


def test_without_a_checkpoint_it_starts_from_scratch(run: Any, whole: Any, log: Any) -> None:
    fresh = run()
    fresh.resume()
    assert unequal(fresh.everything(), whole()) == []
    assert f"no checkpoint in {fresh.folder} yet: starting from scratch" in log()


def test_a_finished_run_stays_finished(run: Any, whole: Any, log: Any) -> None:
    ended = run()
    ended.fit()
    ended.resume(CrashAt(EPOCHS * BATCHES, "batch_begin"))
    assert unequal(ended.everything(), whole()) == []
    assert f"the run had finished: {EPOCHS} epochs" in log()


@pytest.mark.parametrize(
    ("changed", "other", "message"),
    [
        ("spec", lambda: make_spec(metrics={}), "accuracy"),
        (
            "net",
            lambda: Net(9),
            r'parameters\["body\.0\.weight"\]\.shape: \[8, 6\] in the checkpoint, \[9, 6\] here',
        ),
        (
            "trainers",
            lambda: TrainerSpec(".*", "adam"),
            r'trainers\["heads"\]: .*"SGD".* in the checkpoint, not here',
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(run: Any, changed: str, other: Any, message: str) -> None:
    stopped = run()
    stopped.crash(3)
    setattr(stopped, changed, other)
    estimator = stopped.build()
    estimator.check(stopped.loader)
    before = everything(estimator)
    with pytest.raises(SpecError, match=message):
        estimator.fit(stopped.loader, epochs=3, resume=stopped.folder)
    assert unequal(everything(estimator), before) == []
    assert (estimator.state.step, estimator.state.epoch, estimator.history.epochs) == (0, 0, 0)


# -------------------------------------------------------------------------------- damaged checkpoints


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: list[Callable[[Path], None]] = [truncate, flip, Path.unlink]


@pytest.fixture
def short(run: Any) -> Run:
    """Return a small run of one epoch that crashed after four of its five batches."""
    quick: Run = run("list")
    quick.net, quick.spec, quick.trainers = Straight, steady, lambda: TrainerSpec(".*", "adam")
    quick.every = Every(1, "batch")
    quick.crash(4, epochs=1)
    return quick


def test_a_checkpoint_with_any_damaged_file_is_skipped(short: Run, log: Any, tmp_path: Path) -> None:
    kept = short.folder.rename(tmp_path / "kept")
    shutil.copytree(kept, short.folder)
    short.resume(epochs=1)
    expected = short.everything()
    names = sorted(p.name for p in (kept / "checkpoints" / "epoch-0001-step-00000004").iterdir())
    assert {"manifest.json", "net.params", "trainers.npz", "run.json", "random.json"} <= set(names)
    for number, name in enumerate(names):
        for damage in DAMAGES[number % 3 :][:1]:  # all three are tested with each file in tests/checkpoints
            shutil.rmtree(short.folder)
            shutil.copytree(kept, short.folder)
            newest = short.folder / "checkpoints" / "epoch-0001-step-00000004"
            damage(newest / name)
            before = len(log())
            short.resume(epochs=1)
            said = log()[before:]
            assert [line for line in said if line.startswith(f"skipped: {newest}: {name} ")], said
            assert "resuming from epoch-0001-step-00000003: epoch 1, batch 4" in said
            assert unequal(short.everything(), expected) == [], (name, damage)


def test_if_all_are_damaged_all_are_named(short: Run) -> None:
    checkpoints = sorted((short.folder / "checkpoints").iterdir())
    flip(checkpoints[0] / "net.params")
    (checkpoints[1] / "manifest.json").unlink()
    with pytest.raises(ValueError) as caught:
        short.resume(epochs=1)
    assert all(str(path) in str(caught.value) for path in checkpoints) and len(checkpoints) == 2
    assert "net.params" in str(caught.value) and "manifest.json is missing" in str(caught.value)
    assert newest_checkpoint(short.folder)[0] is None
