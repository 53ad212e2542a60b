"""find_learning_rate: a curve, a suggestion, and nothing that is not as it was."""

from __future__ import annotations

import io
import random
import sys
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from multifit import DataError, MultiEstimator, TaskSpec, TrainerError, TrainerSpec, UserCodeError
from multifit.gluon.data.seeding import seed_everything
from multifit.rate_search import RateSearch

import mxnet as mx  # isort: skip
from mxnet.gluon import nn

L2 = mx.gluon.loss.L2Loss()
SPEC = TaskSpec(inputs=["x"], outputs=["y"], labels=["y"], losses={"y": L2})
CONTEXTS = [mx.cpu(0), mx.cpu(1)]


class Net(mx.gluon.HybridBlock):
    """A body with running statistics, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.HybridSequential()
        self.body.add(nn.Dense(6, in_units=3), nn.BatchNorm(in_channels=6), nn.Activation("tanh"))
        self.head = nn.Dense(1, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.head(self.body(x))


def made(contexts: Any = None, grad_req: str = "write") -> Net:
    seed_everything(1)
    net = Net()
    net.initialize(ctx=contexts or CONTEXTS[:1])
    net.hybridize()
    for parameter in net.collect_params("(?!.*running).*").values():
        parameter.grad_req = grad_req
    return net


def batches(count: int = 4, size: int = 7) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.RandomState(3)
    x = generator.randn(count, size, 3).astype("float32")
    return [(each, each[:, :1] - 0.5 * each[:, 1:2]) for each in x]


class Shuffled:
    """Data whose order depends on NumPy's and Python's random state."""

    def __iter__(self) -> Iterator[Any]:
        data = batches()
        np.random.shuffle(data)
        random.shuffle(data)
        return iter(data)


def kvstore_trainers(net: Net) -> dict[str, Any]:
    """Two trainers that update on their kvstores, one with a kvstore object."""
    body = mx.gluon.Trainer(
        net.body.collect_params(), "adam", {"learning_rate": 0.01}, "device", update_on_kvstore=True
    )
    head = mx.gluon.Trainer(
        net.head.collect_params(), "sgd", {"momentum": 0.9}, mx.kv.create("local"), update_on_kvstore=True
    )
    return {"body": body, "head": head}


def schedule() -> Any:
    return mx.lr_scheduler.FactorScheduler(3, 0.7, base_lr=0.02)


TRAINERS: dict[str, Callable[[Net], Any]] = {
    "default": lambda net: None,
    "several": lambda net: {
        "body": TrainerSpec("body.*", "adam", lr_scheduler=schedule(), clip_norm=1.0),
        "head": TrainerSpec("head.*", "sgd", {"learning_rate": 0.1, "momentum": 0.9}),
    },
    "nadam": lambda net: TrainerSpec(".*", "nadam"),  # keeps a product of its own in the optimizer
    "own": lambda net: mx.gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}),
    "kvstore": kvstore_trainers,
}


class Broken:
    """Data that fails after some batches."""

    def __iter__(self) -> Iterator[Any]:
        yield from batches()
        raise OSError("the disk is gone")


def broken(estimator: Any) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        estimator.find_learning_rate(Broken(), end=10.0)


def searched(estimator: Any) -> None:
    found = estimator.find_learning_rate(Shuffled(), start=1e-4, end=10.0, batches=20)
    assert len(found.rates) > 10


def arrays(estimator: Any) -> list[np.ndarray]:
    found = [
        array for p in estimator._engine.model.parameters.values() for array in (*p._data, *(p._grad or ()))
    ]
    return [array.asnumpy() for array in found]


def flags(estimator: Any) -> list[bool]:
    return [d._fresh_grad for p in estimator._engine.model.parameters.values() if p._grad for d in p._data]


CASES = [(kind, CONTEXTS, begun) for kind in TRAINERS for begun in (False, True)]
CASES += [("default", CONTEXTS[:1], False), ("several", CONTEXTS[:1], True), ("own", CONTEXTS[:1], True)]


@pytest.mark.parametrize(("kind", "contexts", "begun"), CASES)
def test_training_goes_on_as_if_nothing_had_been(kind: str, contexts: Any, begun: bool) -> None:
    """Bit for bit, whether before a first fit or between two, and whether the search ended well or not."""
    ends = []
    for look in (False, True):
        net = made(contexts, "add" if kind == "several" else "write")
        estimator = MultiEstimator(net, SPEC, TRAINERS[kind](net), context=contexts)
        histories = [estimator.fit(Shuffled(), epochs=2, event_handlers=[])] if begun else []
        if look:
            if not begun:
                estimator.check(Shuffled())  # builds the trainers
            history, plan, state = estimator.history, estimator.plan, vars(estimator.state).copy()
            before, fresh = arrays(estimator), flags(estimator)
            rates, own = estimator.learning_rates(), dict(estimator.trainers)
            searched(estimator)
            broken(estimator)
            for then, now in zip(before, arrays(estimator)):
                np.testing.assert_array_equal(now, then)
            assert flags(estimator) == fresh and estimator.learning_rates() == rates
            assert estimator.history is history and estimator.plan is plan
            assert vars(estimator.state) == state and dict(estimator.trainers) == own
        histories.append(estimator.fit(Shuffled(), epochs=2, event_handlers=[]))
        ends.append((arrays(estimator), histories, np.random.rand(), random.random()))
    for without, with_ in zip(ends[0][0], ends[1][0]):
        np.testing.assert_array_equal(with_, without)
    assert ends[0][1:] == ends[1][1:]


def test_the_curve_is_the_hand_written_one() -> None:
    data = batches(12)
    net, twin = made(), made()
    found = MultiEstimator(net, SPEC).find_learning_rate(data, 1e-3, 0.3, batches=12)
    trainer, losses = mx.gluon.Trainer(twin.collect_params(), "adam"), []
    for (x, y), rate in zip(data, found.rates):
        trainer.set_learning_rate(rate)
        with mx.autograd.record():
            loss = L2(twin(mx.nd.array(x)), mx.nd.array(y))
        losses.append(float(loss.mean().asscalar()))
        loss.backward()
        trainer.step(len(x))
    assert found.rates == pytest.approx(np.geomspace(1e-3, 0.3, 12))
    assert found.losses == pytest.approx(losses, rel=1e-5)


def test_one_trainer_grows_and_the_others_keep_their_rate() -> None:
    def curve(trainer: str | None, rate: float) -> list[float]:
        specs = {
            "body": TrainerSpec("body.*", "sgd", {"learning_rate": rate}),
            "head": TrainerSpec("head.*", "sgd", {"learning_rate": rate}),
        }
        estimator = MultiEstimator(made(), SPEC, specs)
        return estimator.find_learning_rate(batches(), 1e-3, 0.3, 12, trainer).losses

    head, body, both = curve("head", 0.0), curve("body", 0.0), curve(None, 0.0)
    assert len({tuple(each) for each in (head, body, both)}) == 3
    assert curve("head", 0.1) != head and curve(None, 0.1) == both


def test_it_ends_where_the_loss_diverges() -> None:
    estimator = MultiEstimator(made(), SPEC, TrainerSpec(".*", "sgd"))
    found = estimator.find_learning_rate(batches(size=100), 1e-3, 1e6, 60)
    assert 10 < len(found.rates) == len(found.losses) == len(found.smoothed) < 60
    assert np.isfinite(found.losses).all()
    assert found.suggestion is not None and 1e-3 < found.suggestion < 1
    assert repr(found) == (
        f"RateSearch({len(found.rates)} batches, rates 0.001 to {found.rates[-1]:.2g}, "
        f"suggestion {found.suggestion:.2g})"
    )


def test_it_ends_where_the_loss_is_not_finite() -> None:
    data = [*batches(11), (np.full((7, 3), np.nan, "float32"), np.ones((7, 1), "float32"))]
    assert len(MultiEstimator(made(), SPEC).find_learning_rate(data, batches=40).rates) == 11
    with pytest.raises(ValueError, match="the first batch's loss is not finite"):
        MultiEstimator(made(), SPEC).find_learning_rate(data[::-1])


def test_it_begins_the_data_anew_unless_it_can_be_read_only_once() -> None:
    class Once:
        """Yields nothing the second time, and does not say so."""

        def __init__(self) -> None:
            self.times = 0

        def __iter__(self) -> Iterator[Any]:
            self.times += 1
            return iter(batches() if self.times == 1 else [])

    counts = [
        len(MultiEstimator(made(), SPEC).find_learning_rate(data, batches=15).rates)
        for data in (batches(), iter(batches()), Once())
    ]
    assert counts == [15, 4, 4]


def test_a_net_that_fails_in_the_middle_is_named_with_its_batch() -> None:
    class Fails(mx.gluon.Block):
        """Fails at its sixth batch."""

        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(1, in_units=3)

        def forward(self, x: Any) -> Any:
            Fails.calls += 1
            if Fails.calls == 6:
                raise RuntimeError("it is tired")
            return self.dense(x)

    net = Fails()
    net.initialize()
    before = net.dense.weight.data().asnumpy()
    with pytest.raises(UserCodeError, match="^finding the learning rate, batch 6: .*: it is tired$"):
        MultiEstimator(net, SPEC).find_learning_rate(batches(), end=10.0)
    np.testing.assert_array_equal(net.dense.weight.data().asnumpy(), before)


def test_an_operator_that_fails_late_leaves_nothing_either() -> None:
    """MXNet computes in the background: its error waits in the arrays that were to be written."""

    class Late(mx.operator.CustomOp):
        """Fails in backward, when everybody has gone on."""

        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0])

        def backward(
            self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
        ) -> None:
            raise RuntimeError("late")

    @mx.operator.register("fails_late")
    class LateProp(mx.operator.CustomOpProp):
        """Declares it."""

        def create_operator(self, context: Any, shapes: Any, types: Any) -> Late:
            return Late()

    class LateNet(mx.gluon.Block):
        """A layer in front of it."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(1, in_units=3)

        def forward(self, x: Any) -> Any:
            return mx.nd.Custom(self.dense(x), op_type="fails_late")

    net = LateNet()
    net.initialize()
    before = net.dense.weight.data().asnumpy()
    good, other = batches(2)
    with pytest.raises(DataError):  # before anybody came to read the error of the first update
        MultiEstimator(net, SPEC).find_learning_rate([good, other[:1]], end=10.0)
    np.testing.assert_array_equal(net.dense.weight.data().asnumpy(), before)


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
        found = RateSearch(list(rates), list(losses + 0.02 * noise.randn(100)))
        assert found.suggestion is not None and 3e-4 < found.suggestion < 6e-3


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


def test_plot_without_a_suggestion() -> None:
    (axes,) = RateSearch([0.1], [1.0]).plot().axes
    assert [line.get_label() for line in axes.lines] == ["loss", "smoothed"]


def test_plot_without_matplotlib(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install"):
        RateSearch([0.1], [1.0]).plot()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 0}, "start is 0; valid is a finite number above 0"),
        ({"end": "1"}, "end is '1'; valid is a finite number above 0"),
        ({"end": float("nan")}, "end is nan; valid is a finite number above 0"),
        ({"start": 1.0, "end": 0.1}, "start is 1.0 and end is 0.1; start must be below end"),
        ({"batches": 5}, "batches is 5; valid is a whole number of at least 10"),
        ({"batches": 20.5}, "batches is 20.5; valid is a whole number of at least 10"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        MultiEstimator(made(), SPEC).find_learning_rate(batches(), **arguments)
    assert str(caught.value) == f"find_learning_rate: {message}"


def test_trainers_that_cannot_be_searched() -> None:
    specs = {"body": TrainerSpec("body.*", "adadelta"), "head": TrainerSpec("head.*", "sgd")}
    estimator = MultiEstimator(made(), SPEC, specs)
    with pytest.raises(
        TrainerError, match=r'there is no trainer \'bdy\' \(did you mean "body"\?\); valid are'
    ):
        estimator.find_learning_rate(batches(), trainer="bdy")
    with pytest.raises(TrainerError, match='AdaDelta of trainer "body" makes no use of a rate'):
        estimator.find_learning_rate(batches())
    assert estimator.find_learning_rate(batches(), trainer="head").rates
    estimator.trainers["head"]._distributed = True
    with pytest.raises(TrainerError, match='trainer "head" is distributed: its servers hold states'):
        estimator.find_learning_rate(batches(), trainer="head")


def test_not_in_the_middle_of_a_fit() -> None:
    class Asks:
        """Wants to know too late."""

        def batch_end(self, estimator: Any) -> None:
            estimator.find_learning_rate(batches())

    with pytest.raises(Exception, match="find_learning_rate was called by an event handler"):
        MultiEstimator(made(), SPEC).fit(batches(), epochs=1, event_handlers=[Asks()])
