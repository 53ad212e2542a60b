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
from torch.optim.lr_scheduler import StepLR

from multifit import CheckpointHandler, Every, LossSpec, MultiEstimator, SpecError, TaskSpec, TrainerSpec
from multifit.torch.snapshot import TorchTrees

from .nets import BY_SGD, SGD, Heads, assert_equal_parameters, heads, loader, spec_of_heads

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Has a parameter of two names, running statistics, and a buffer that it does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 6)
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


def estimator_of(net: nn.Module | None = None, spec: TaskSpec | None = None) -> MultiEstimator:
    return MultiEstimator(net or heads(), spec or spec_of_heads(), BY_SGD)


def fitted(net: nn.Module, *handlers: Any, spec: Any = None, trainers: Any = BY_SGD, **options: Any) -> Any:
    """Return an estimator after a fit, of one epoch by default."""
    estimator = MultiEstimator(net, spec or spec_of_heads(), trainers)
    length = {} if "batches" in options else {"epochs": 1}
    estimator.fit(loader(), event_handlers=[*handlers], **{**length, **options})
    return estimator


def checkpoint(folder: Path, net: nn.Module, **options: Any) -> Path:
    """Return the checkpoint after the first epoch."""
    fitted(net, CheckpointHandler(folder, Every(1, "epoch")), **options)
    return next((folder / "checkpoints").glob("epoch-*"))


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
    for found in trees.read(tmp_path, "tree")["deep"][0]:
        assert found.dtype == tensor.dtype and found.shape == tensor.shape and type(found) is Tensor
        bits = [each.contiguous().view(-1).view(torch.uint8) for each in (found, tensor)]
        assert torch.equal(*bits)


def test_tensors_of_other_devices_are_restored_on_the_device_of_the_run(tmp_path: Path) -> None:
    trees, path = TorchTrees(torch.device("meta")), tmp_path / "tree.json"
    trees.write(tmp_path, "tree", [torch.ones(2)])
    path.write_text(path.read_text().replace('"on":"cpu"', '"on":"cuda"'))
    assert trees.read(tmp_path, "tree")[0].device.type == "meta"
    path.write_text(path.read_text().replace("float32", "load"))
    with pytest.raises(ValueError, match="damaged"):
        trees.read(tmp_path, "tree")


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


# ---- files of parameters


def test_a_checkpoint_holds_a_state_dict_that_plain_pytorch_reads(tmp_path: Path) -> None:
    net, other = tied(), tied(1)
    folder = checkpoint(tmp_path, net)
    values = torch.load(folder / "net.pt", weights_only=True)
    assert [*values] == [*net.state_dict()]
    other.load_state_dict(values)
    assert_equal_parameters(net, other, 0)
    versions = json.loads((folder / "run.json").read_text())["versions"]
    assert versions["torch"] == torch.__version__ and "mxnet" not in versions


def test_what_a_run_leaves_is_read_by_plain_pytorch_and_by_load(tmp_path: Path) -> None:
    (net, other, again), spec, loss = (heads(seed=seed) for seed in range(3)), learned(), learned()
    fitted(net, spec=spec, output=tmp_path / "run")
    other.load_state_dict(torch.load(tmp_path / "run" / "final.pt", weights_only=True))
    assert estimator_of(again, loss).load(tmp_path / "run") == tmp_path / "run" / "final.pt"
    assert_equal_parameters(net, other, 0)
    assert_equal_parameters(net, again, 0)
    scales = [each.losses["size"].fn.scale.item() for each in (spec, loss)]  # type: ignore[union-attr]
    assert scales[0] == scales[1] != 1.0
    of_losses = torch.load(tmp_path / "run" / "losses.pt", weights_only=True)
    assert {name: each.item() for name, each in of_losses.items()} == {
        "size.scale": scales[0],
        "size.shift": 0,
    }


class Extra(Heads):
    """Has a state of its own beside its parameters."""

    extra: Any = None

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_states_of_modules_are_kept_if_they_can_be_read_without_running_code(tmp_path: Path) -> None:
    one, other = Extra().double(), Extra().double()
    one.extra = {"seen": [1, 2.5, "a"]}
    estimator = estimator_of(one)
    estimator.save(tmp_path)
    estimator_of(other).load(tmp_path)
    assert other.extra == {"seen": [1, 2.5, "a"]}
    one.extra = TorchTrees(CPU)
    with pytest.raises(ValueError, match="the net's _extra_state is .*TorchTrees.*without running code; let"):
        estimator.save(tmp_path)


class Averages:
    """Lets evaluations use other values, as averages of weights are."""

    evaluated_parameters: Mapping[str, Any] = {}

    def train_begin(self, estimator: Any) -> None:
        fives = torch.full((6, 6), 5.0, dtype=torch.float64)
        self.evaluated_parameters = {"kind.bias": np.full(3, 7.0), "one.weight": fives}


def test_evaluated_values_are_in_the_file_and_trained_ones_beside_it(tmp_path: Path) -> None:
    net, other = tied(), tied(1)
    fitted(net, CheckpointHandler(tmp_path, Every(2, "batch")), Averages(), batches=2)
    folder = next((tmp_path / "checkpoints").glob("epoch-*"))
    values, trained = (torch.load(folder / name, weights_only=True) for name in ("net.pt", "trained.pt"))
    assert values["kind.bias"].tolist() == [7.0] * 3
    assert torch.equal(values["other.weight"], values["one.weight"]) and (values["one.weight"] == 5).all()
    assert trained.keys() == {"kind.bias", "one.weight"}
    assert torch.equal(trained["one.weight"], net.one.weight)
    fitted(other, resume=tmp_path, batches=2)
    assert_equal_parameters(net, other, 0)


def test_a_lazy_net_is_loaded_and_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'"body.0.weight", "body.0.bias" have no values yet: call the net'):
        estimator_of(heads("lazy")).save(tmp_path)
    net, loaded, resumed, through = (heads("lazy", seed) for seed in (0, 1, 2, 0))
    checkpoint(tmp_path / "cut", net, seed=3)
    estimator_of(loaded).load(tmp_path / "cut")
    assert_equal_parameters(net, loaded, 0)
    for each, options in ((resumed, {"resume": tmp_path / "cut"}), (through, {"seed": 3})):
        fitted(each, CheckpointHandler(tmp_path / "whole", Every(1, "epoch")), epochs=2, **options)
    assert_equal_parameters(resumed, through, 0)


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path("evil").write_text, ("",))


DAMAGED, NAMELESS = "is damaged, or holds no parameters", "the tensors of .* have no names"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "code": (lambda path: torch.save({"a": Evil()}, path), DAMAGED),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(Evil())), DAMAGED),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:100]), DAMAGED),
    "empty": (lambda path: path.write_bytes(b""), DAMAGED),
    "a list": (lambda path: torch.save([torch.ones(1)], path), NAMELESS),
    "numbers": (lambda path: torch.save({1: torch.ones(1)}, path), NAMELESS),
}


@pytest.mark.parametrize("kind", BAD)
def test_nothing_in_a_file_runs_and_damage_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, said = BAD[kind]
    estimator = estimator_of()
    before = estimator.values()
    spoil(estimator.save(tmp_path))
    with pytest.raises(ValueError, match=said):
        estimator.load(tmp_path)
    np.testing.assert_equal(estimator.values(), before)
    assert not (tmp_path / "evil").exists()


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "sizes": (lambda: Heads(width=4).double(), r'"kind.weight"\].shape: \[3, 8\] in the file, \[3, 4\] here'),
    "dtypes": (lambda: heads().float(), 'dtype: "float64" in the file, "float32" here'),
    "names": (tied, r'parameters\["body.0.weight"\].* in the file, not here'),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_parameters_of_another_net_are_refused_before_any_is_set(kind: str, tmp_path: Path) -> None:
    make, said = DIFFERENT[kind]
    estimator_of().save(tmp_path)
    estimator = estimator_of(make())
    before = estimator.values()
    with pytest.raises(SpecError, match=said):
        estimator.load(tmp_path)
    np.testing.assert_equal(estimator.values(), before)


def test_what_is_no_file_of_parameters_is_said(tmp_path: Path) -> None:
    path = estimator_of().save(tmp_path)
    with pytest.raises(ValueError, match=r"is a file: net.load_state_dict\(torch.load\(file\)\) reads one"):
        estimator_of().load(path)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="holds neither final.pt of a finished run nor an intact checkpoint"):
        estimator_of().load(tmp_path / "none")
    with pytest.raises(ValueError, match="there is no file .*losses.pt"):
        estimator_of(heads(), learned()).load(tmp_path)
    (tmp_path / "losses.pt").mkdir()
    with pytest.raises(ValueError, match="losses.pt is a folder, not a file"):
        estimator_of(heads(), learned()).load(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_oserror() -> None:
    with pytest.raises(OSError, match="No space left"):
        estimator_of()._engine.snapshot.write_trained(Path("/dev/full"))


# ---- resuming


def test_buffers_that_a_net_does_not_save_are_in_the_checkpoint(tmp_path: Path) -> None:
    """And are left alone if their shape differs."""
    one, other, another = tied(), tied(1), tied(1)
    another.calls = torch.zeros(2, dtype=torch.int64)  # type: ignore[assignment]
    checkpoint(tmp_path, one)
    for net in (other, another):
        fitted(net, resume=tmp_path)
    assert other.calls == one.calls > 0  # type: ignore[operator]
    assert another.calls.tolist() == [0, 0]


# fmt: off
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "an optimizer": ({"trainers": TrainerSpec(".*", "adam", {"lr": 0.1})},
        r'trainers\["trainer"\].optimizer: "SGD" in the checkpoint, "Adam" here'),
    "a schedule": ({"trainers": TrainerSpec(".*", "sgd", SGD, lambda optimizer: StepLR(optimizer, 3))},
        'schedule: null in the checkpoint, "StepLR" here'),
    "the net": ({"net": tied()}, r'parameters\["body.0.weight"\]: .* in the checkpoint, not here'),
}
# fmt: on


@pytest.mark.parametrize("change", CHANGES)
def test_another_run_is_refused(change: str, tmp_path: Path) -> None:
    options, said = CHANGES[change]
    checkpoint(tmp_path, heads())
    with pytest.raises(SpecError, match=said):
        fitted(**{"net": heads(), "resume": tmp_path, **options})
