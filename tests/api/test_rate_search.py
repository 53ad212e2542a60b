"""find_learning_rate: a curve and a suggestion; tests/gluon/test_trial_run.py tests what it preserves."""

import io
from typing import Any

import numpy as np
import pytest

from multifit import DataError, MultiEstimator, TrainerError, TrainerSpec
from multifit.estimator.rate_search import RateSearch
from tests.common.compare import assert_unchanged, snapshot
from tests.common.nets import mlp
from tests.common.specs import L2, one_loss_spec

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

SPEC = one_loss_spec(L2)


def batches(count: int = 4, size: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    x = np.random.RandomState(3).randn(count, size, 4).astype("float32")
    return [(each, each[:, :1] - 0.5 * each[:, 1:2]) for each in x]


def make_estimator(trainers: Any = None, net: Any = None) -> MultiEstimator:
    return MultiEstimator(mlp(1, norm=True) if net is None else net, SPEC, trainers)


def test_the_curve_is_the_hand_written_one() -> None:
    data = batches(12)
    search, twin = make_estimator().find_learning_rate(data, 1e-3, 0.05, batches=12), mlp(1, norm=True)
    trainer, losses = mx.gluon.Trainer(twin.collect_params(), "adam"), []
    for (x, y), rate in zip(data, search.rates):
        trainer.set_learning_rate(rate)
        with mx.autograd.record():
            loss = L2(twin(mx.nd.array(x)), mx.nd.array(y))
        losses.append(float(loss.mean().asscalar()))
        loss.backward()
        trainer.step(len(x))
    assert search.rates == pytest.approx(np.geomspace(1e-3, 0.05, 12))
    assert search.losses == pytest.approx(losses, rel=1e-5)


def test_one_trainer_grows_and_the_others_keep_their_rate() -> None:
    def curve(trainer: str | None, rate: float) -> list[float]:
        parts = {"body": "[01].*", "head": "2.*"}
        specs = {name: TrainerSpec(which, "sgd", {"learning_rate": rate}) for name, which in parts.items()}
        return make_estimator(specs).find_learning_rate(batches(), 1e-3, 0.3, 12, trainer).losses

    head, body, both = curve("head", 0.0), curve("body", 0.0), curve(None, 0.0)
    assert len({tuple(each) for each in (head, body, both)}) == 3
    assert curve("head", 0.1) != head and curve(None, 0.1) == both


def test_it_ends_where_the_loss_diverges() -> None:
    search = make_estimator(TrainerSpec(".*", "sgd")).find_learning_rate(batches(size=100), 1e-3, 1e6, 60)
    assert 10 < len(search.rates) == len(search.losses) == len(search.smoothed) < 60
    assert np.isfinite(search.losses).all()
    assert search.suggestion is not None and 1e-3 < search.suggestion < 1
    assert f"rates 0.001 to {search.rates[-1]:.2g}, suggestion {search.suggestion:.2g})" in repr(search)


def test_it_ends_where_the_loss_is_not_finite() -> None:
    data = [*batches(11), (np.full((7, 4), np.nan, "float32"), np.ones((7, 1), "float32"))]
    assert len(make_estimator().find_learning_rate(data, batches=40).rates) == 11
    with pytest.raises(DataError, match='inputs."data"] holds NaN'):
        make_estimator().find_learning_rate(data[::-1])
    data[-1][0][:], data[-1][1][:] = 1, 3e38  # the label, whose square is infinite
    with pytest.raises(ValueError, match="the first batch's loss is not finite"):
        make_estimator().find_learning_rate(data[::-1])


def test_it_reads_the_data_again_unless_it_can_be_read_only_once() -> None:
    class Once:
        """Yields nothing the second time, without an error."""

        times = 0

        def __iter__(self) -> Any:
            self.times += 1
            return iter(batches() if self.times == 1 else [])

    lengths = [
        len(make_estimator().find_learning_rate(data, batches=15).rates)
        for data in (batches(), iter(batches()), Once())
    ]
    assert lengths == [15, 4, 4]


def test_a_net_that_fails_is_named_with_its_batch() -> None:
    class Fails(nn.Dense):
        """Fails when it is called for the sixth time; the check of the first batch calls it too."""

        calls = 0

        def forward(self, x: Any) -> Any:
            Fails.calls += 1
            if Fails.calls == 6:
                raise RuntimeError("it is tired")
            return super().forward(x)

    net = Fails(1, in_units=4)
    net.initialize()
    before = snapshot(net)
    with pytest.raises(
        RuntimeError, match=r"^it is tired\nraised in the net.*\(finding the learning rate, batch 5\)$"
    ):
        make_estimator(net=net).find_learning_rate(batches(), end=10.0)
    assert_unchanged(net, before)


def test_where_the_loss_does_not_fall_nothing_is_suggested() -> None:
    noise = np.random.RandomState(0)
    rates = list(np.geomspace(1e-6, 1, 100))
    flat = [RateSearch(rates, list(1 + 0.1 * noise.randn(100))) for _ in range(50)]
    assert sum(search.suggestion is not None for search in flat) <= 2
    assert RateSearch(rates[:2], [1.0, 2.0]).suggestion is None
    assert (
        repr(RateSearch(rates[:1], [1.0])) == "RateSearch(1 batches, rates 1e-06 to 1e-06, suggestion none)"
    )


def test_a_valley_is_found_through_the_noise() -> None:
    noise, rates = np.random.RandomState(0), np.geomspace(1e-6, 1, 100)
    distance = np.log10(rates / 1e-2)
    for _ in range(20):
        losses = np.where(distance < 0, 1 / (1 + np.exp(2 + 2 * distance)), 3 * distance**2)
        search = RateSearch(list(rates), list(losses + 0.02 * noise.randn(100)))
        assert search.suggestion is not None and 3e-4 < search.suggestion < 6e-3


def test_table() -> None:
    search = RateSearch(list(np.geomspace(1e-3, 1, 4)), [2.0, 1.0, 0.5, 1e5])
    rate, *lines = (line.split() for line in search.table().splitlines())
    assert rate == ["rate", "loss", "smoothed"] and len(lines) == 5
    assert [line[:2] for line in lines[1:]] == [
        ["1.00e-03", "2"], ["1.00e-02", "1"], ["1.00e-01", "0.5"], ["1.00e+00", "1e+05"]
    ]  # fmt: skip
    assert len(search.table(2).splitlines()) == 4


def test_plot() -> None:
    fall = [*np.linspace(3.0, 1.0, 15), 2.0, 5.0, 100.0]
    search = RateSearch(list(np.geomspace(1e-3, 1, 18)), fall)
    (axes,) = search.plot().axes
    drawn = {line.get_label(): tuple(map(list, line.get_data())) for line in axes.lines}
    assert axes.get_xscale() == "log" and axes.get_ylim()[1] < 5
    assert drawn["loss"] == (search.rates, fall) and drawn["smoothed"] == (search.rates, search.smoothed)
    assert search.suggestion is not None
    assert drawn[f"suggestion: {search.suggestion:.2g}"][0] == [search.suggestion] * 2
    file = io.BytesIO()
    search.plot().savefig(file, format="png", dpi=20)
    assert file.getvalue().startswith(b"\x89PNG")
    (axes,) = RateSearch([0.1], [1.0]).plot().axes
    assert [line.get_label() for line in axes.lines] == ["loss", "smoothed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "start is 0; valid is a finite number above 0"),
        ({"start": 1.0, "end": 0.1}, "start is 1.0 and end is 0.1; start must be below end"),
        ({"batches": 5}, "batches is 5; valid is a whole number of at least 10"),
    ],
)
def test_invalid_arguments_are_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make_estimator().find_learning_rate(batches(), **arguments)
    assert str(caught.value) == f"find_learning_rate: {message}"


def test_trainers_that_cannot_be_searched_are_errors() -> None:
    estimator = make_estimator({"body": TrainerSpec("[01].*", "adadelta"), "head": TrainerSpec("2.*", "sgd")})
    message = r'there is no trainer \'bdy\' \(did you mean "body"\?\); valid are'
    with pytest.raises(TrainerError, match=message):
        estimator.find_learning_rate(batches(), trainer="bdy")
    with pytest.raises(TrainerError, match=r'trainers\["body"\].learning_rate: AdaDelta has none'):
        estimator.find_learning_rate(batches())
    assert estimator.find_learning_rate(batches(), batches=10, trainer="head").rates
