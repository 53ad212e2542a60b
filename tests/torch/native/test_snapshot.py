"""What checkpoints of PyTorch nets hold, how it is read back, and what is refused."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from multifit import CheckpointHandler, Every, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.torch.snapshot import TorchTrees
from tests.common.ranks import run_ranks

from .nets import Heads, assert_equal_parameters, columns, heads, loader, spec_of_heads

CPU = torch.device("cpu")
SGD = TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9})


class Tied(nn.Module):
    """Has a parameter of two names, running statistics, and a buffer that it does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one = nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.other = nn.Linear(6, 6)
        self.other.weight = self.one.weight
        self.kind, self.size = nn.Linear(6, 3), nn.Linear(6, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.calls += 1
        x = self.other(torch.tanh(self.one(self.norm(x))))
        return self.kind(x), self.size(x)


class Learned(nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return (torch.exp(-self.scale) * (output - label).square() + self.scale + self.shift).mean()


def tied(seed: int = 0) -> Tied:
    torch.manual_seed(seed)
    return Tied().double()


def learned() -> TaskSpec:
    return spec_of_heads(size=LossSpec(Learned().double()))


def fitted(net: nn.Module, spec: TaskSpec | None = None, *handlers: Any, **options: Any) -> MultiEstimator:
    estimator = MultiEstimator(net, spec or spec_of_heads(), options.pop("trainers", SGD))
    length = {} if "batches" in options else {"epochs": 1}
    estimator.fit(loader(), event_handlers=[*handlers], **{**length, **options})
    return estimator


def checkpoint(folder: Path, net: nn.Module, spec: TaskSpec | None = None, **options: Any) -> Path:
    """Return the checkpoint after the first epoch."""
    fitted(net, spec, CheckpointHandler(folder, Every(1, "epoch")), **options)
    return next((folder / "checkpoints").glob("epoch-*"))


def assert_same_values(one: MultiEstimator, other: MultiEstimator) -> None:
    np.testing.assert_equal(one.values(), other.values())


# ---- trees

TENSORS = [
    torch.arange(6.0).reshape(2, 3), torch.zeros(0, 3), torch.tensor(1.5, dtype=torch.float64),
    torch.tensor([True, False]), torch.tensor([2**53 + 1]), torch.arange(6)[::2], torch.rand(2, 3).T,
    torch.tensor(1.1, dtype=torch.bfloat16), torch.rand(3).to(torch.float16),
    torch.rand(3).to(torch.float8_e4m3fn), torch.tensor(1 + 2j),
]  # fmt: skip


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}, {tuple(tensor.shape)}")
def test_tensors_are_restored_exactly(tensor: Tensor, tmp_path: Path) -> None:
    trees = TorchTrees(CPU)
    trees.write(tmp_path, "tree", {"deep": [(tensor, nn.Parameter(tensor, requires_grad=False))], "plain": 1})
    restored = trees.read(tmp_path, "tree")
    for found in restored["deep"][0]:
        assert found.dtype == tensor.dtype and found.shape == tensor.shape and type(found) is Tensor
        assert (
            found.numpy(force=True).tobytes() == tensor.contiguous().numpy().tobytes()
            if (tensor.dtype not in (torch.bfloat16, torch.float8_e4m3fn))
            else torch.equal(found.float(), tensor.float())
        )


def test_tensors_of_other_devices_are_restored_on_the_device_of_the_run(tmp_path: Path) -> None:
    trees = TorchTrees(torch.device("meta"))
    trees.write(tmp_path, "tree", [torch.ones(2)])
    text = (tmp_path / "tree.json").read_text().replace('"on":"cpu"', '"on":"cuda"')
    (tmp_path / "tree.json").write_text(text)
    assert trees.read(tmp_path, "tree")[0].device.type == "meta"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(2, 2).to_sparse(), "Tensor, which cannot be saved; valid are .* and dense tensors"),
        (nn.Linear(1, 1), "Linear, which cannot be saved"),
    ],
)
def test_other_values_are_refused(value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"tree.key is a .*{said}"):
        TorchTrees(CPU).write(tmp_path, "tree", {"key": value})


def test_a_damaged_tree_says_so(tmp_path: Path) -> None:
    trees = TorchTrees(CPU)
    trees.write(tmp_path, "tree", torch.ones(2))
    path = tmp_path / "tree.json"
    path.write_text(path.read_text().replace("float32", "load"))
    with pytest.raises(ValueError, match="damaged"):
        trees.read(tmp_path, "tree")


# ---- files of parameters


def test_a_checkpoint_holds_a_state_dict_that_plain_pytorch_reads(tmp_path: Path) -> None:
    net = tied()
    folder = checkpoint(tmp_path, net)
    values = torch.load(folder / "net.pt", weights_only=True)
    assert [*values] == [*net.state_dict()]
    other = tied(1)
    other.load_state_dict(values)
    assert_equal_parameters(net, other)
    assert torch.equal(net.norm.running_mean, other.norm.running_mean)  # type: ignore[arg-type]


def test_what_a_run_leaves_is_read_by_plain_pytorch_and_by_load(tmp_path: Path) -> None:
    net, other = heads(), heads(seed=1)
    spec = learned()
    fitted(net, spec, output=tmp_path / "run")
    other.load_state_dict(torch.load(tmp_path / "run" / "final.pt", weights_only=True))
    assert_equal_parameters(net, other)
    again, loss = heads(seed=2), learned()
    estimator = MultiEstimator(again, loss, SGD)
    assert estimator.load(tmp_path / "run") == tmp_path / "run" / "final.pt"
    assert_equal_parameters(net, again)
    scales = [each.losses["size"].fn.scale.item() for each in (spec, loss)]  # type: ignore[union-attr]
    assert scales[0] == scales[1] != 1.0
    of_losses = torch.load(tmp_path / "run" / "losses.pt", weights_only=True)
    assert {name: each.item() for name, each in of_losses.items()} == {
        "size.scale": scales[0],
        "size.shift": 0,
    }


class Extra(Heads):
    """Has a state of its own beside its parameters."""

    extra: Any = {"seen": [1, 2.5, "a"]}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_states_of_modules_are_kept_if_they_can_be_read_without_running_code(tmp_path: Path) -> None:
    one, other = Extra().double(), Extra().double()
    other.extra = None
    estimator = MultiEstimator(one, spec_of_heads(), SGD)
    estimator.save(tmp_path)
    MultiEstimator(other, spec_of_heads(), SGD).load(tmp_path)
    assert other.extra == {"seen": [1, 2.5, "a"]}
    one.extra = TorchTrees(CPU)
    with pytest.raises(ValueError, match="the net's _extra_state is .*TorchTrees.*without running code; let"):
        estimator.save(tmp_path)


def test_save_and_load(tmp_path: Path) -> None:
    one, other = MultiEstimator(tied(), spec_of_heads(), SGD), MultiEstimator(tied(1), spec_of_heads(), SGD)
    assert one.save(tmp_path) == tmp_path / "final.pt"
    other.load(tmp_path)
    assert_same_values(one, other)


class Averages:
    """Lets evaluations use other values, as averages of weights are."""

    evaluated_parameters: Mapping[str, Any] = {}

    def train_begin(self, estimator: Any) -> None:
        self.evaluated_parameters = {
            "kind.bias": np.full(3, 7.0),
            "one.weight": torch.full((6, 6), 5.0, dtype=torch.float64),
        }


def test_evaluated_values_are_in_the_file_and_trained_ones_beside_it(tmp_path: Path) -> None:
    net = tied()
    saving = CheckpointHandler(tmp_path, Every(2, "batch"))
    fitted(net, None, saving, Averages(), batches=2)
    folder = next((tmp_path / "checkpoints").glob("epoch-*"))
    values = torch.load(folder / "net.pt", weights_only=True)
    assert values["kind.bias"].tolist() == [7.0] * 3
    assert torch.equal(values["other.weight"], values["one.weight"]) and (values["one.weight"] == 5).all()
    trained = torch.load(folder / "trained.pt", weights_only=True)
    assert trained.keys() == {"kind.bias", "one.weight"} and torch.equal(
        trained["one.weight"], net.one.weight
    )
    other = tied(1)
    fitted(other, None, resume=tmp_path, batches=2)
    assert_equal_parameters(net, other)


def test_parameters_without_values_are_refused(tmp_path: Path) -> None:
    estimator = MultiEstimator(heads("lazy"), spec_of_heads(), SGD)
    with pytest.raises(ValueError, match=r'"body.0.weight", "body.0.bias" have no values yet: call the net'):
        estimator.save(tmp_path)


def test_a_lazy_net_is_loaded_and_resumed(tmp_path: Path) -> None:
    net, loaded = heads("lazy"), heads("lazy", 1)
    saving = [CheckpointHandler(tmp_path, Every(1, "epoch"))]
    through = fitted(net, None, *saving, epochs=2, seed=3)
    MultiEstimator(loaded, spec_of_heads(), SGD).load(tmp_path)
    assert_equal_parameters(net, loaded)
    cut = tmp_path / "cut"
    fitted(heads("lazy"), None, CheckpointHandler(cut, Every(1, "epoch")), seed=3)
    resumed = fitted(heads("lazy", 1), None, CheckpointHandler(cut, Every(1, "epoch")), resume=cut, epochs=2)
    assert_same_values(through, resumed)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path("evil").write_text, ("",))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "code": (lambda path: torch.save({"a": Evil()}, path), "is damaged, or holds no parameters"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Evil())), "is damaged, or holds no parameters"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:100]), "is damaged, or holds no parameters"),
    "empty": (lambda path: path.write_bytes(b""), "is damaged, or holds no parameters"),
    "a list": (lambda path: torch.save([torch.ones(1)], path), "the tensors of .* have no names"),
    "numbers": (lambda path: torch.save({1: torch.ones(1)}, path), "the tensors of .* have no names"),
}


@pytest.mark.parametrize("kind", BAD)
def test_nothing_in_a_file_runs_and_damage_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, said = BAD[kind]
    estimator = MultiEstimator(heads(), spec_of_heads(), SGD)
    path = estimator.save(tmp_path)
    before = estimator.values()
    spoil(path)
    with pytest.raises(ValueError, match=said):
        estimator.load(tmp_path)
    np.testing.assert_equal(estimator.values(), before)
    assert not (tmp_path / "evil").exists()


def test_a_missing_file_of_losses_is_named(tmp_path: Path) -> None:
    MultiEstimator(heads(), spec_of_heads(), SGD).save(tmp_path)
    estimator = MultiEstimator(heads(), learned(), SGD)
    with pytest.raises(ValueError, match="there is no file .*losses.pt"):
        estimator.load(tmp_path)
    (tmp_path / "losses.pt").mkdir()
    with pytest.raises(ValueError, match="losses.pt is a folder, not a file"):
        estimator.load(tmp_path)


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sizes": (lambda: Heads(width=4).double(), r'"kind.weight"\].shape: \[3, 8\] in the file, \[3, 4\] here'),
    "dtypes": (lambda: heads().float(), 'dtype: "float64" in the file, "float32" here'),
    "names": (tied, r'parameters\["body.0.weight"\].* in the file, not here'),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_parameters_of_another_net_are_refused_before_any_is_set(kind: str, tmp_path: Path) -> None:
    make, said = DIFFERENT[kind]
    MultiEstimator(heads(), spec_of_heads(), SGD).save(tmp_path)
    estimator = MultiEstimator(make(), spec_of_heads(), SGD)
    before = estimator.values()
    with pytest.raises(SpecError, match=said):
        estimator.load(tmp_path)
    np.testing.assert_equal(estimator.values(), before)


def test_a_full_disk_is_an_oserror(tmp_path: Path) -> None:
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("needs /dev/full")
    estimator = MultiEstimator(heads(), spec_of_heads(), SGD)
    with pytest.raises(OSError, match="No space left"):
        estimator._engine.snapshot.write_trained(path)


def test_what_is_no_file_of_parameters_is_said(tmp_path: Path) -> None:
    estimator = MultiEstimator(heads(), spec_of_heads(), SGD)
    with pytest.raises(ValueError, match=r"is a file: net.load_state_dict\(torch.load\(file\)\) reads one"):
        estimator.load(estimator.save(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds neither final.pt of a finished run nor an intact checkpoint"):
        estimator.load(tmp_path / "none")


# ---- resuming


def test_buffers_that_a_net_does_not_save_are_in_the_checkpoint(tmp_path: Path) -> None:
    one, other = tied(), tied(1)
    checkpoint(tmp_path, one)
    fitted(other, None, resume=tmp_path)
    assert other.calls == one.calls > 0  # type: ignore[operator]


def test_buffers_that_have_another_shape_are_left(tmp_path: Path) -> None:
    checkpoint(tmp_path, tied())
    other = tied(1)
    other.calls = torch.zeros(2, dtype=torch.int64)  # type: ignore[assignment]
    fitted(other, None, resume=tmp_path)
    assert other.calls.tolist() == [0, 0]


def test_generators_of_torch_continue_without_a_seed(tmp_path: Path) -> None:
    checkpoint(tmp_path, heads())
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        fitted(heads(), None, resume=tmp_path)
        drawn.append(torch.rand(2).tolist())
    assert drawn[0] == drawn[1]


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "an optimizer": (
        {"trainers": TrainerSpec(".*", "adam", {"lr": 0.1})},
        r'trainers\["trainer"\].optimizer: "SGD" in the checkpoint, "Adam" here',
    ),
    "an option": (
        {"trainers": TrainerSpec(".*", "sgd", {"lr": 0.2, "momentum": 0.9})},
        r'options\["lr"\]: 0.1 in the checkpoint, 0.2 here',
    ),
    "a schedule": (
        {"trainers": TrainerSpec(
            ".*", "sgd", {"lr": 0.1, "momentum": 0.9},
            lr_scheduler=lambda each: torch.optim.lr_scheduler.StepLR(each, 3),
        )},
        'schedule: null in the checkpoint, "StepLR" here',
    ),
    "a norm": (
        {"trainers": TrainerSpec(".*", "sgd", {"lr": 0.1, "momentum": 0.9}, clip_norm=2)},
        "clip_norm: null in the checkpoint, 2.0 here",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_another_run_is_refused(change: str, tmp_path: Path) -> None:
    options, said = CHANGES[change]
    checkpoint(tmp_path, heads())
    with pytest.raises(SpecError, match=said):
        fitted(heads(), None, resume=tmp_path, **options)


def test_another_net_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, heads())
    with pytest.raises(SpecError, match=r'parameters\["body.0.weight"\]: .* in the checkpoint, not here'):
        fitted(tied(), None, resume=tmp_path)


def test_versions_name_torch(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, heads())
    run = json.loads((folder / "run.json").read_text())
    assert run["versions"]["torch"] == torch.__version__ and "mxnet" not in run["versions"]


# ---- ranks


def batches(count: int) -> list[Any]:
    x, kind, size = columns(count * 6)
    return [(x[i : i + 6], kind[i : i + 6], size[i : i + 6]) for i in range(0, len(x), 6)]


def joint(
    world: Any, folder: Path, make: Callable[[], nn.Module] = tied, accumulate: int = 1, **options: Any
) -> MultiEstimator:
    estimator = MultiEstimator(make(), spec_of_heads(), SGD, world=world, accumulate=accumulate)
    saving = CheckpointHandler(folder, Every(1, "batch"), seed=3)
    estimator.fit(batches(4), event_handlers=[saving], **{"epochs": 1, **options})
    return estimator


def by_ranks(size: int, *arguments: Any, **options: Any) -> list[Any]:
    results = run_ranks(size, lambda world: joint(world, *arguments, **options))
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


@pytest.mark.parametrize("accumulate", [1, 4])
def test_each_rank_continues_with_its_own_state(accumulate: int, tmp_path: Path) -> None:
    """Its running statistics, its figures, and its gradients that wait for an update."""
    through = by_ranks(2, tmp_path / "through", accumulate=accumulate)
    cut = tmp_path / "cut"
    by_ranks(2, cut, accumulate=accumulate, epochs=None, batches=3)
    resumed = by_ranks(2, cut, accumulate=accumulate, resume=cut)
    for one, other in zip(through, resumed):
        assert_same_values(one, other)
        np.testing.assert_equal(dict(one.history), dict(other.history))


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1), (1, 2)])
def test_another_number_of_ranks_continues_with_the_sum_of_the_figures(
    sizes: tuple[int, int], tmp_path: Path
) -> None:
    (through,) = by_ranks(1, tmp_path / "through", heads)
    cut = tmp_path / "cut"
    by_ranks(sizes[0], cut, heads, epochs=None, batches=3)
    for resumed in by_ranks(sizes[1], cut, heads, resume=cut):
        for name, values in through.history.items():
            assert resumed.history[name] == pytest.approx(values, rel=1e-10), name
        assert_equal_parameters(resumed.net, through.net)


def test_another_number_of_ranks_continues_with_the_mean_of_running_statistics(tmp_path: Path) -> None:
    """Which a fit ends with, too."""
    cut = by_ranks(2, tmp_path, epochs=None, batches=3)
    resumed = by_ranks(3, tmp_path, resume=tmp_path, epochs=None, batches=3)
    means = [each.net.norm.running_mean for each in (*cut, *resumed)]
    assert all(torch.allclose(each, means[0], rtol=1e-12) for each in means) and means[0].abs().min() > 0


def test_gradients_that_wait_cannot_be_divided(tmp_path: Path) -> None:
    by_ranks(2, tmp_path, accumulate=4, epochs=None, batches=3)
    with pytest.raises(ValueError, match="gradients of 2 processes wait for an update, .* among 3"):
        by_ranks(3, tmp_path, accumulate=4, resume=tmp_path)


def test_all_ranks_get_the_states_of_the_first_ranks_trainers() -> None:
    def continues(world: Any) -> Any:
        net = heads()
        estimator = MultiEstimator(net, spec_of_heads(), SGD, world=world)
        optimizer = estimator.trainers["trainer"].optimizer
        if world.first:
            for parameter in net.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        estimator._engine.snapshot.share_trainers()
        return [state["momentum_buffer"].sum().item() for state in optimizer.state.values()]

    first, second = run_ranks(2, continues)
    assert first == second and len(first) == 6


def test_fresh_trainers_stay_fresh() -> None:
    def continues(world: Any) -> Any:
        estimator = MultiEstimator(heads(), spec_of_heads(), SGD, world=world)
        estimator._engine.snapshot.share_trainers()
        return dict(estimator.trainers["trainer"].optimizer.state)

    assert run_ranks(2, continues) == [{}, {}]
