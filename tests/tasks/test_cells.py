"""Cells: short trainings with gates, without, and weighed; the mixture is that of the paper."""

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

# isort: split
from mxnet import nd

from .commands import TASKS, train

FILE = TASKS / "cells.py"


def test_each_task_mixes_the_experts_by_a_gate_of_its_own():
    task = TaskFile(FILE).module
    mixture = task.net()
    mixture.initialize(task.initializer())
    measures = np.random.RandomState(0).randn(5, 10).astype("float32")
    outputs = mixture(nd.array(measures))

    def dense(layer, values):
        return values @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()

    experts = np.tanh(dense(mixture.experts, measures)).reshape(5, task.experts, task.units)
    for output, gate, head in zip(outputs, mixture.gates, mixture.heads):
        shares = np.exp(dense(gate, measures))
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("neu,ne->nu", experts, shares)
        np.testing.assert_allclose(output.asnumpy(), dense(head, mixed), rtol=1e-4, atol=1e-5)


def test_gates_and_experts_train(tmp_path):
    history = train(FILE, tmp_path, "epochs=3")
    assert history["train_loss"][2] < history["train_loss"][0]
    assert history["val_diagnosis_accuracy"][2] > 0.85
    assert history["val_texture_r2"][0] < history["val_texture_r2"][2] < 1


@pytest.mark.parametrize("settings", [["gates=False"], ["method=UPGrad"], ["method=DWA"]])
def test_beside_it(settings, tmp_path):
    history = train(FILE, tmp_path, "epochs=1", *settings)
    assert ("train_weight_symmetry" in history) == settings[0].startswith("method")
    assert np.isfinite(history["val_symmetry_r2"]).all()
    plan = " ".join((tmp_path / "plan.txt").read_text().split())
    shared = 'tasks share 2 parameters and branch at 1 array; shared: "experts.weight", "experts.bias"'
    assert (shared in plan) == (settings == ["method=UPGrad"])
