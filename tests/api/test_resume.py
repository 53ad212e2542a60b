"""A resumed fit ends bit for bit as it would have without the stop, or is refused with the reason."""

from __future__ import annotations

import random
import re
import shutil
import signal
from dataclasses import replace
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
from multifit.checkpoints import newest_checkpoint, read_manifest
from multifit.checkpoints.integrity import file_hash
from multifit.checkpoints.manifest import encode_manifest
from multifit.gluon.data.seeding import seed_everything
from multifit.handlers.plateau import PlateauHandler
from tests.common.data import in_batches
from tests.common.nets import TWO_HEADS, Heads, normed_heads, sequential, two_heads
from tests.common.specs import CE, L2, two_head_spec

import mxnet as mx  # isort: skip
from mxnet import gluon  # isort: skip
from mxnet.gluon import nn  # isort: skip

# Python 3.12 warns about a fork in a process with threads; MXNet has some, and handles it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SAMPLES, BATCH = 36, 8  # five batches an epoch, the last one of 4
BATCHES, EPOCHS = 5, 2
STEPS = BATCHES * EPOCHS


class Distance(mx.metric.EvalMetric):
    """A metric that is computed on the host, and stores more than sums."""

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
    metrics = {
        "accuracy": MetricSpec(mx.metric.Accuracy(), "digit", "digit"),
        "distance": MetricSpec(Distance(), "size", "size", mode="min"),
    }
    losses = {"digit": CE, "size": LossSpec(L2, weight=0.5)}
    return two_head_spec(**{"losses": losses, "metrics": metrics, **changes})


def make_trainers(momentum: float = 0.9) -> dict[str, TrainerSpec]:
    schedule = mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.02)
    return {
        "body": TrainerSpec("body.*", "adam", {"learning_rate": 0.02}, schedule, clip_norm=1.0),
        "heads": TrainerSpec("(digit|size).*", "sgd", {"learning_rate": 0.1, "momentum": momentum}),
    }


# ---- data --------------------------------------------------------------------------------------------------


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
        batches = in_batches(samples(), BATCH)
        for i in np.random.permutation(BATCHES):
            image, *labels = map(mx.nd.array, batches[i])
            noise = mx.nd.random.normal(shape=image.shape) * np.random.rand() * random.random()
            yield (image + noise, *labels)


class Augmented(gluon.data.ArrayDataset):
    """Samples augmented in the loader's workers, with NumPy's, Python's and MXNet's generators."""

    def __getitem__(self, index: int) -> Any:
        image, *labels = super().__getitem__(index)
        noise = mx.nd.random.normal(shape=image.shape).asnumpy() * np.random.rand()
        return (image + random.random() * noise, *labels)


class Numbered(gluon.data.ArrayDataset):
    """Samples that list in `loaded` which of them were loaded."""

    loaded: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(int(index))
        return super().__getitem__(index)


class OwnLoader(gluon.data.DataLoader):
    """A loader whose workers cannot be seeded, as it may start them in a way of its own."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()


def loader(dataset: Any = gluon.data.ArrayDataset, kind: Any = gluon.data.DataLoader, **options: Any) -> Any:
    if "batch_sampler" not in options:
        options = {"batch_size": BATCH, "shuffle": True, **options}
    return kind(dataset(*samples()), **options)


def data_iter(**options: Any) -> Any:
    image, digit, size = samples()
    labels = {"digit": digit, "size": size}
    return mx.io.NDArrayIter({"image": image}, labels, BATCH, shuffle=True, **options)


DATA: dict[str, Callable[[], Any]] = {
    "loader": loader,
    "iter": data_iter,
    "list": lambda: in_batches(samples(), BATCH),
    "noisy": Noisy,
    "cards": lambda: loader(batch_sampler=Cards()),
    "loader with rollover": lambda: loader(last_batch="rollover"),
    "iter with roll_over": lambda: data_iter(last_batch_handle="roll_over"),
    "augmenting processes": lambda: loader(Augmented, num_workers=2),
    "augmenting processes, in order": lambda: loader(Augmented, num_workers=2, shuffle=False),
    "processes that cannot be seeded": lambda: loader(kind=OwnLoader, num_workers=1),
    "numbered": lambda: loader(Numbered),
}


# ---- runs --------------------------------------------------------------------------------------------------


class Crash(RuntimeError):
    """Stands for a power cut."""


def power_cut() -> None:
    raise Crash


class At:
    """Does something at an event of a step: after CheckpointHandler, or before it if `priority` is 0."""

    def __init__(
        self, step: int, event: str = "batch_end", priority: float = 9000.0, action: Any = power_cut
    ) -> None:
        self.step, self.priority, self.action = step, priority, action
        setattr(self, event, self._act)

    def train_begin(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def _act(self, estimator: Any) -> None:
        if estimator.state.step == self.step:
            self.action()


class Run:
    """A training, built for each fit as a new process would build it."""

    def __init__(self, folder: Path, data: str = "loader", devices: int = 1, every: Any = 2) -> None:
        self.folder, self.data, self.devices = folder, data, devices
        self.every = Every(every, "batch") if isinstance(every, int) else every
        self.net: Callable[[], Any] = normed_heads
        self.spec: Callable[[], Any] = make_spec
        self.trainers: Callable[[], Any] = make_trainers
        self.handlers: Callable[[], list[Any]] = list
        self.estimator: Any = None

    def build(self) -> Any:
        seed_everything(0)
        contexts = [mx.cpu(i) for i in range(self.devices)]
        self.estimator = MultiEstimator(self.net(), self.spec(), self.trainers(), contexts)
        return self.estimator

    def fit(self, *more: Any, resume: Any = None, **limits: Any) -> Any:
        self.build()
        data = DATA[self.data]()
        if resume is not None:
            seed_everything(99)  # as a new process may have drawn other numbers
        handlers = [*self.handlers(), CheckpointHandler(self.folder, self.every, seed=7), *more]
        limits = limits or {"epochs": EPOCHS}
        validation = [tuple(column[:12] for column in samples())]
        return self.estimator.fit(data, validation, event_handlers=handlers, resume=resume, **limits)

    def crash(self, *arguments: Any, **options: Any) -> None:
        with pytest.raises(Exception) as caught:
            self.fit(At(*arguments), **options)
        assert isinstance(caught.value.__cause__, Crash)

    def resume(self, *more: Any, **limits: Any) -> Any:
        return self.fit(*more, resume=self.folder, **limits)

    def end(self) -> dict[str, Any]:
        """Return everything that must be equal after a resumed fit; parameters and states as bytes."""
        return {
            **values(self.estimator),
            "history": self.estimator.history.to_json(),
            "rates": self.estimator.learning_rates(),
            "state": self.estimator.state.to_dict(),
            "reason": self.estimator.state.stop_reason,
        }


def simple_run(folder: Path, every: Any = 1) -> Run:
    """Return a run on a list, with nothing random and a rate of 0: the order does not change its figures."""
    run = Run(folder, "list", every=every)
    run.net, run.spec = lambda: two_heads("hybrid"), lambda: make_spec(metrics={})
    run.trainers = lambda: TrainerSpec(".*", "adam", {"learning_rate": 0.0})
    return run


def values(estimator: Any) -> dict[str, bytes]:
    """Return the bytes of all parameters and optimizer states."""
    arrays = {
        f"{name}@{data.context}": data.asnumpy().tobytes()
        for name, parameter in estimator.parameters.items()
        for data in parameter.list_data()
    }
    for name, trainer in estimator.trainers.items():
        for number, updater in enumerate(trainer._updaters):
            for i, state in updater.states.items():
                leaves = state if isinstance(state, tuple) else (state,)
                content = [leaf.asnumpy().tobytes() for leaf in leaves if leaf is not None]
                arrays[f"{name}/{number}/{i}"] = b"".join(content)
    return arrays


def unequal(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    return [name for name in {**one, **two} if name not in one or name not in two or one[name] != two[name]]


WHOLE: dict[Any, dict[str, Any]] = {}


def end_without_stop(run: Run) -> dict[str, Any]:
    """Return the end of the same run without a stop; trained once for all tests."""
    key = run.data, run.devices, repr(run.every)
    if key not in WHOLE:
        whole = Run(run.folder.with_name("whole"), run.data, run.devices, run.every)
        whole.fit()
        WHOLE[key] = whole.end()
    return WHOLE[key]


# ---- bit for bit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "devices", "every", "step", "event", "priority"),
    [
        ("loader", 1, 2, 1, "batch_end", 9000.0),  # before the first checkpoint
        ("loader", 2, 2, 8, "batch_end", 9000.0),  # at a checkpoint
        ("loader", 1, 2, 6, "batch_end", 0.0),  # just before a checkpoint
        ("iter", 2, 2, 5, "evaluate_batch_end", 0.0),
        ("list", 1, 5, 5, "epoch_begin", 9000.0),  # where the epoch ended with a checkpoint
        ("loader", 1, 2, STEPS, "train_end", 0.0),
        ("loader", 1, Every(1, "epoch"), 8, "batch_end", 9000.0),
        ("noisy", 1, 2, 7, "batch_end", 9000.0),
        ("cards", 1, 2, 7, "batch_end", 9000.0),
        ("loader with rollover", 1, 2, 7, "batch_end", 9000.0),
        ("iter with roll_over", 1, 2, 7, "batch_end", 9000.0),
        ("augmenting processes", 1, 2, 7, "batch_end", 9000.0),
        ("augmenting processes, in order", 1, 2, 7, "batch_end", 9000.0),
    ],
)
def test_it_ends_bit_for_bit_as_without_the_stop(
    tmp_path: Path, log: Any, data: str, devices: int, every: Any, step: int, event: str, priority: float
) -> None:
    run = Run(tmp_path / "run", data, devices, every)
    run.crash(step, event, priority)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []
    assert not any("cannot be seeded" in line for line in log())


def test_it_can_be_stopped_several_times(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.crash(3)
    for step in (3, 8):
        run.crash(step, resume=run.folder)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []


def test_the_states_of_handlers_are_restored(tmp_path: Path) -> None:
    def handlers() -> list[Any]:
        return [
            EarlyStoppingHandler("val_loss", patience=2, min_delta=100, restore_best=True),
            PlateauHandler("val_loss", factor=0.5, patience=2, min_delta=100),
        ]

    ends = []
    for name, step in (("whole", None), ("stopped", 12)):
        run = Run(tmp_path / name, "list")
        run.handlers = handlers
        if step is not None:
            run.crash(step, epochs=9)
        run.fit(epochs=9, resume=None if step is None else run.folder)
        ends.append(run.end())
    assert "val_loss has not improved" in ends[0]["reason"] and ends[0]["state"]["step"] == 3 * BATCHES
    assert ends[0]["rates"]["lr_heads"] == 0.05
    assert unequal(*ends) == []


def test_a_run_stopped_by_a_number_of_batches_can_be_extended(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.fit(batches=8)
    run.resume(batches=STEPS)
    assert unequal(run.end(), {**end_without_stop(run), "reason": f"{STEPS} batches"}) == []


def test_a_run_can_be_extended_by_epochs(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run")
    run.fit(epochs=1)
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []
    assert "resuming from epoch-0001-step-00000005: epoch 2" in log()


def test_no_sample_is_loaded_twice(tmp_path: Path) -> None:
    Numbered.loaded.clear()
    run = Run(tmp_path / "run", "numbered")
    run.crash(4)
    run.resume(epochs=1)
    assert sorted(Numbered.loaded) == list(range(SAMPLES))


def test_workers_that_cannot_be_seeded_are_logged(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run", "processes that cannot be seeded")
    run.crash(3, epochs=1)
    assert not any("cannot be seeded" in line for line in log())
    run.resume(epochs=1)
    assert sum(line.startswith("the loader's workers cannot be seeded") for line in log()) == 1


def test_without_a_seed_nothing_can_be_seeded(tmp_path: Path) -> None:
    estimator = Run(tmp_path).build()
    for reseed in (estimator.reseed, estimator.reseed_epoch):
        with pytest.raises(ValueError, match=r"the run has no seed: set estimator\.state\.seed first"):
            reseed()


# ---- outside the schedule ----------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [None, Every(1, "epoch"), 2], ids=["none", "epochs", "batches"])
def test_ctrl_c_within_an_epoch(tmp_path: Path, log: Any, every: Any) -> None:
    def ctrl_c() -> None:
        signal.raise_signal(signal.SIGINT)

    run = simple_run(tmp_path / "run", every)
    run.data = "loader"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run.fit(At(4, priority=-1, action=ctrl_c))
    assert run.estimator.state.stop_reason == "SIGINT" and run.estimator.state.step == 4
    run.fit(At(8, priority=-1, action=ctrl_c), resume=run.folder)
    assert run.estimator.state.step == 8
    history = run.resume()
    assert run.estimator.state.step == STEPS
    # logged when such a checkpoint is written, and when it is read
    assert sum("not bit for bit" in line for line in log()) == (0 if every == 2 else 4)
    # each epoch measured every sample once
    assert history["train_loss"] == pytest.approx([history["train_loss"][0]] * EPOCHS, rel=1e-6)


@pytest.mark.parametrize("batches", [BATCHES, 8])
def test_a_run_without_a_schedule_can_be_resumed_with_one(tmp_path: Path, log: Any, batches: int) -> None:
    run = simple_run(tmp_path / "run", None)
    run.fit(batches=batches)
    assert run.estimator.state.seed is None
    run.every = Every(2, "batch")
    run.resume()
    assert (run.estimator.state.step, run.estimator.state.seed) == (STEPS, 7)
    assert any(line.startswith("the run was started with every=None") for line in log())


class Unsavable(mx.metric.EvalMetric):
    """Its state is a generator, which no file can hold."""

    def __init__(self) -> None:
        super().__init__("unsavable")
        self.generator = (i for i in range(3))

    def update(self, labels: Any, preds: Any) -> None:
        self.num_inst, self.sum_metric = self.num_inst + 1, self.sum_metric + 1


class WithState:
    """A handler with a state."""

    def batch_end(self, estimator: Any) -> None:
        """An event, so that it is a handler."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


def test_what_cannot_be_saved_or_loaded_is_logged(tmp_path: Path, log: Any) -> None:
    run = simple_run(tmp_path / "run")
    run.spec = lambda: make_spec(metrics={"odd": MetricSpec(Unsavable(), "digit", "digit")})
    run.fit(WithState(), epochs=1)
    assert "checkpoints cannot hold train_odd; it starts from zero after a resume" in log()
    run.resume()
    assert '"train_odd" starts from zero: the checkpoint could not hold it' in log()
    assert "the checkpoint holds the state of WithState, which this fit does not have" in log()


# ---- where nothing is resumed ------------------------------------------------------------------------------


def test_without_a_checkpoint_it_starts_from_scratch(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run")
    run.resume()
    assert unequal(run.end(), end_without_stop(run)) == []
    assert f"no checkpoint in {run.folder} yet: starting from scratch" in log()


def test_a_finished_run_stays_finished(tmp_path: Path, log: Any) -> None:
    run = Run(tmp_path / "run")
    run.fit()
    run.resume(At(STEPS, "batch_begin"))
    assert unequal(run.end(), end_without_stop(run)) == []
    assert f"the run had finished: {EPOCHS} epochs" in log()


def test_a_run_that_a_handler_stopped_goes_on_only_if_it_is_extended(tmp_path: Path, caplog: Any) -> None:
    class Stops:
        def epoch_end(self, estimator: Any) -> bool:
            return True

    run = Run(tmp_path / "run")
    run.fit(Stops(), epochs=3)
    run.resume(epochs=3)
    assert run.estimator.state.epoch == 1
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning == (
        "the run had finished: Stops; nothing is trained: to go on, resume with more than epochs=3"
    )
    run.resume(epochs=4)
    assert run.estimator.state.epoch == 4


def wider_net() -> Any:
    return Heads(
        body=sequential(nn.Dense(9, activation="relu"), nn.BatchNorm(), nn.Dropout(0.3)), **TWO_HEADS
    )


def test_a_checkpoint_of_another_run_is_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.crash(3)
    usual = dict(vars(run))
    for field, other, line in (
        ("spec", lambda: make_spec(metrics={}), 'metrics["accuracy"]: '),
        ("net", wider_net, 'parameters["body.0.weight"].shape: [8, 6] in the checkpoint, [9, 6] here'),
        ("trainers", lambda: make_trainers(0.5), 'options["momentum"]: 0.9 in the checkpoint, 0.5 here'),
        ("trainers", lambda: TrainerSpec(".*", "adam"), 'trainers["heads"]: '),
    ):
        vars(run).update({**usual, field: other})
        estimator = run.build()
        estimator.check(loader())
        before = values(estimator)
        with pytest.raises(SpecError) as caught:
            estimator.fit(loader(), epochs=EPOCHS, resume=run.folder)
        assert line in str(caught.value)
        assert unequal(values(estimator), before) == []
        assert (estimator.state.step, estimator.state.epoch, estimator.history.epochs) == (0, 0, 0)


# ---- damaged checkpoints -----------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def crashed_run(folder: Path) -> Run:
    """Return a run of one epoch that crashed after four of its five batches."""
    run = simple_run(folder)
    run.trainers = lambda: TrainerSpec(".*", "adam")
    run.crash(4, epochs=1)
    return run


def test_a_damaged_checkpoint_is_skipped(tmp_path: Path, log: Any) -> None:
    run = crashed_run(tmp_path / "run")
    crashed = Path(shutil.copytree(run.folder, tmp_path / "crashed"))
    run.resume(epochs=1)
    expected = run.end()
    newest = run.folder / "checkpoints" / "epoch-0001-step-00000004"
    damages = [
        ("net.params", flip),
        ("trainers.npz", truncate),
        ("run.json", Path.unlink),
        ("manifest.json", flip),
    ]
    for name, damage in damages:
        shutil.rmtree(run.folder)
        shutil.copytree(crashed, run.folder)
        damage(newest / name)
        logged = len(log())
        run.resume(epochs=1)
        lines = log()[logged:]
        assert [line for line in lines if line.startswith(f"skipped: {newest}: {name} ")], lines
        assert "resuming from epoch-0001-step-00000003: epoch 1, batch 4" in lines
        assert unequal(run.end(), expected) == [], (name, damage)


def test_if_all_are_damaged_all_are_named(tmp_path: Path) -> None:
    run = crashed_run(tmp_path / "run")
    checkpoints = sorted((run.folder / "checkpoints").iterdir())
    flip(checkpoints[0] / "net.params")
    (checkpoints[1] / "manifest.json").unlink()
    with pytest.raises(ValueError) as caught:
        run.resume(epochs=1)
    assert all(str(path) in str(caught.value) for path in checkpoints) and len(checkpoints) == 2
    assert "net.params" in str(caught.value) and "manifest.json is missing" in str(caught.value)
    assert newest_checkpoint(run.folder)[0] is None


@pytest.mark.parametrize("content", ["{}", '{"arrays": 0, "tree": {"dict": []}}', "[" * 500 + "]" * 500])
def test_content_that_multifit_would_not_write_is_an_error(tmp_path: Path, content: str) -> None:
    """The hashes are right: anybody can compute them."""
    run = crashed_run(tmp_path / "run")
    newest = run.folder / "checkpoints" / "epoch-0001-step-00000004"
    manifest, names = read_manifest(newest), ("figures", "identity", "order", "random", "run", "trainers")
    for name in names:
        path = newest / f"{name}.json"
        before = path.read_bytes()
        path.write_text(content)
        files = {**manifest.files, path.name: file_hash(path)}
        (newest / "manifest.json").write_bytes(encode_manifest(replace(manifest, files=files)))
        with pytest.raises(ValueError, match=re.escape(str(newest))):
            run.resume(epochs=1)
        path.write_bytes(before)
