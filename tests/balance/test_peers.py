"""Every method against numbers of TorchJD and LibMTL (peers.json)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.balance import (
    DWA,
    FAMO,
    GLS,
    IMTLL,
    RLW,
    STCH,
    AlignedMTL,
    ConFIG,
    DualProj,
    FairGrad,
    GradNorm,
    NashMTL,
    PCGrad,
    Uncertainty,
    UPGrad,
)  # fmt: skip
from multifit.balance.losses import softmax
from multifit.balance.protocol import measured_losses, weigh_gradients, weigh_losses
from tests.common.balance_methods import methods

PEERS = json.loads((Path(__file__).parent / "peers.json").read_text())
OTHERS = {
    "UPGrad 1e-4": UPGrad(1e-4), "UPGrad of LibMTL": UPGrad(1e-4), "DualProj 1e-4": DualProj(1e-4),
    "AlignedMTL median": AlignedMTL("median"), "AlignedMTL rmse": AlignedMTL("rmse"),
    "NashMTL": NashMTL(), "FairGrad 1": FairGrad(1),
}  # fmt: skip
NAMES = dict.fromkeys(name for vectors in PEERS["vectors"].values() for name in vectors)
METHODS: dict[str, Any] = {name: OTHERS.get(name) or methods()[name.split()[0]] for name in NAMES}
# How far a peer's result is from ours where its solver stops early; a test below shows that ours is better.
UNCONVERGED = {
    ("conflict3", "CAGrad"): 2e-5, ("conflict3", "CAGrad of LibMTL"): 2e-5,
    ("badly_scaled", "CAGrad"): 2e-5, ("badly_scaled", "CAGrad of LibMTL"): 1,
    ("conflict2", "NashMTL"): 1e-7, ("conflict3", "MGDA of LibMTL"): 1e-5,
    ("badly_scaled", "MGDA"): 1e-4,
    ("badly_scaled", "FairGrad 1"): 1, ("badly_scaled", "NashMTL"): 1, ("badly_scaled", "FairGrad 2"): 1e-4,
    ("extreme", "FairGrad 1"): 1, ("extreme", "FairGrad 2"): 2, ("extreme", "NashMTL"): 1,
    ("extreme", "CAGrad"): 2, ("extreme", "CAGrad of LibMTL"): 1,
}  # fmt: skip
# Where no result is right: the gradients are multiples of each other, some opposite.
UNDETERMINED = {"FairGrad 1", "FairGrad 2", "NashMTL", "IMTLG", "UPGrad 1e-12", "DualProj 1e-12", "MGDA"}
UNDETERMINED |= {"MGDA of LibMTL"}
# TorchJD's and LibMTL's pseudoinverse drops the gradients that are 1e-24 times as long as others.
ROUNDED = {("extreme", "IMTLG"), ("extreme", "IMTLG of LibMTL"), ("badly_scaled", "IMTLG of LibMTL")}
# Eigenvalues 1e14 apart: the smallest is made of rounding, and another processor's LAPACK rounds otherwise.
ROUNDED |= {("badly_scaled", f"AlignedMTL {scale}") for scale in ("min", "median", "rmse")}
CASES = [
    (case, name)
    for case, vectors in PEERS["vectors"].items()
    for name in vectors
    if case != "zero_row"  # a task without gradient, which peers do not leave out
    and not (case == "collinear" and name in UNDETERMINED)
    and (case, name) not in ROUNDED
]


def gradients(case: str) -> np.ndarray:
    return np.array(PEERS["matrices"][case])


def solved(method: Any, case: str) -> np.ndarray:
    rows = gradients(case)
    if isinstance(method, PCGrad):
        method.orders = lambda step, tasks: PEERS["orders"][case]  # type: ignore[method-assign]
    return method.solve(rows @ rows.T)


@pytest.mark.parametrize(("case", "name"), CASES)
def test_combined_gradients_are_those_of_the_peers(case: str, name: str) -> None:
    theirs = np.array(PEERS["vectors"][case][name])
    error, scale = np.abs(solved(METHODS[name], case) @ gradients(case) - theirs).max(), np.abs(theirs).max()
    limit = UNCONVERGED.get((case, name), 1e-8)
    assert error <= limit * scale
    assert limit == 1e-8 or error > 1e-8 * scale, "the peer agrees; take it out of UNCONVERGED"


def slack(name: str, rows: np.ndarray, vector: np.ndarray) -> float:
    """Return how far a combined gradient is from what the method asks for; 0 is best."""
    if name.startswith("MGDA"):
        return float(np.linalg.norm(vector))
    inner = rows @ vector
    if name.startswith("CAGrad"):  # maximises the smallest inner product in a ball around the mean
        mean = rows.mean(axis=0)
        outside = np.linalg.norm(vector - mean) - 0.5 * np.linalg.norm(mean)
        return float(-inner.min() + 1e9 * max(0.0, outside - 1e-9 * np.linalg.norm(mean)))
    power = 2.0 if name == "FairGrad 2" else 1.0  # inner products are w ** (-1 / alpha)
    weights = np.abs(inner) ** -power
    return float(np.linalg.norm(weights @ rows - vector) / np.linalg.norm(vector))


@pytest.mark.parametrize(("case", "name"), [key for key in UNCONVERGED if key[0] != "extreme"])
def test_ours_is_at_least_as_good_where_a_peer_stopped_early(case: str, name: str) -> None:
    rows = gradients(case)
    ours = slack(name, rows, solved(METHODS[name], case) @ rows)
    assert ours <= slack(name, rows, np.array(PEERS["vectors"][case][name])) + 1e-12


PREFERRED = {
    "UPGrad 1e-4": UPGrad(1e-4), "DualProj 1e-4": DualProj(1e-4), "AlignedMTL min": AlignedMTL("min"),
    "AlignedMTL median": AlignedMTL("median"), "ConFIG": ConFIG(),
}  # fmt: skip


@pytest.mark.parametrize("case", PEERS["preference"]["vectors"])
@pytest.mark.parametrize("name", PREFERRED)
def test_preferences_are_those_of_torchjd(name: str, case: str) -> None:
    """TorchJD's default vector is 1/K, but 1 in ConFIG, whose length does not depend on it."""
    rows, ones = gradients(case), np.ones(len(gradients(case)))
    preference = np.array(PEERS["preference"]["pref_vector"][: len(rows)])
    arguments = PREFERRED[name], ones, rows @ rows.T, ones, {}
    weights, _ = weigh_gradients(*arguments, preference=preference / preference.mean())
    theirs = np.array(PEERS["preference"]["vectors"][case][name])
    expected = theirs if name == "ConFIG" else theirs / preference.sum()
    np.testing.assert_allclose(weights @ rows, expected, rtol=1e-8, atol=1e-12)


def test_the_average_of_weights_is_that_of_torchjd() -> None:
    method, state = DualProj(1e-4, smooth=0.7), {}
    pairs = zip(PEERS["smooth"]["matrices"], PEERS["smooth"]["DualProj 1e-4, 0.7"])
    for matrix, expected in pairs:
        rows = np.array(matrix)
        weights, state = weigh_gradients(method, np.ones(3), rows @ rows.T, np.ones(3), state)
        np.testing.assert_allclose(weights, expected, rtol=1e-8)


SEQUENCES = {
    "UW sgd 0.1": Uncertainty(learning_rate=0.1, optimizer="sgd"),
    "UW adam 0.05": Uncertainty(learning_rate=0.05),
    "UW of LibMTL sgd 0.1": Uncertainty(start=-0.5, learning_rate=0.1, optimizer="sgd"),
    "IMTLL sgd 0.01": IMTLL(0.01, "sgd"),
    "IMTLL adam 0.05": IMTLL(0.05),
    "GLS": GLS(),
    "FAMO 1e-3": FAMO(),
    "FAMO 1e-5": FAMO(weight_decay=1e-5),
}


def assert_weights(method: Any, batches: Any, after: Any = None) -> None:
    """Compare the weights in batches of epoch, losses and weights; None is not compared."""
    weights, state = np.ones(3), method.start(3)
    for step, (epoch, losses, expected) in enumerate(batches):
        measured = measured_losses(np, 3, np.array(losses), np.full(3, float(epoch)), step)
        weights, state = weigh_losses(method, measured, weights, state)
        if expected is not None:
            np.testing.assert_allclose(weights, expected, rtol=1e-8, atol=1e-30)
        if after is not None:
            state = method.after_update(measured, np.array(after[step]), state)


@pytest.mark.parametrize("name", SEQUENCES)
def test_weights_of_losses_are_those_of_the_peers(name: str) -> None:
    steps = PEERS["losses"][name]
    after = [step[1] for step in steps] if name.startswith("FAMO") else None
    assert_weights(SEQUENCES[name], [(0, step[0], step[-1]) for step in steps], after)


@pytest.mark.parametrize("temperature", ["2", "0.5"])
def test_dwa_is_that_of_the_peers(temperature: str) -> None:
    epochs = enumerate(zip(PEERS["dwa"]["epochs"], PEERS["dwa"][temperature]))
    assert_weights(
        DWA(float(temperature)), [(epoch, losses, w) for epoch, (batches, w) in epochs for losses in batches]
    )


@pytest.mark.parametrize("name", [name for name in PEERS["stch"] if name != "epochs"])
def test_stch_is_that_of_the_peers(name: str) -> None:
    """LibMTL has the warm-up; TorchJD's scalarizer gets the logarithms, their reference and weights of 1."""
    peer, mu, warmup = name.split()
    losses = [(epoch, each) for epoch, batches in enumerate(PEERS["stch"]["epochs"]) for each in batches]
    rows = zip(losses, PEERS["stch"][name])
    compared = [(*row, w if peer == "LibMTL" or row[0] >= int(warmup) else None) for row, w in rows]
    assert_weights(STCH(float(mu), int(warmup)), compared)


def test_random_weights_are_made_of_normal_numbers_as_those_of_the_peers() -> None:
    normals, expected = map(np.array, zip(*PEERS["losses"]["RLW"]))
    np.testing.assert_allclose(softmax(normals), expected, rtol=1e-8)
    first = softmax(np.random.default_rng([0, 0]).standard_normal((256, 3)))[5]
    weights, _ = RLW().weights(measured_losses(np, 3, np.ones(3), np.zeros(3), 5), {})
    np.testing.assert_array_equal(weights, first)


def test_gradnorm_is_that_of_the_paper() -> None:
    """Step by step, as the paper's weights may turn negative, from where there is no way back."""
    rows, steps = np.array(PEERS["gradnorm"]["G"]), PEERS["gradnorm"]["steps"]
    method, first = GradNorm(), np.array(steps[0][0])
    for (losses, before), (_, after) in zip(steps, steps[1:]):
        state = {"weights": np.array(before), "first": first}
        weights, state = weigh_gradients(method, np.array(losses), rows @ rows.T, np.ones(3), state)
        np.testing.assert_array_equal(weights, before)
        if min(after) > 0:
            np.testing.assert_allclose(state["weights"], after, rtol=1e-8)
        assert state["weights"].min() > 0 and state["weights"].sum() == pytest.approx(3)
