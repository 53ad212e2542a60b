"""What is probably not meant is warned of: channels last, a softmax too many, parameters without gradient."""

import re
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, metric, nd  # isort: skip


WAY_OUT = "images are (N, C, H, W): give them ToTensor() of gluon.data.vision.transforms, or transpose("


def check(*blocks: Any, channels: int = 3) -> list[str]:
    net = gluon.nn.HybridSequential()
    net.add(*blocks, gluon.nn.Dense(2))
    batch = np.ones((4, 8, 8, channels), "float32"), np.zeros(4, "float32")
    plan = MultiEstimator(net, gluon.loss.SoftmaxCrossEntropyLoss()).check([batch])
    return [notice for notice in plan.notices if "channels last" in notice]


def test_a_convolution_over_the_rows_is_warned_of() -> None:
    (warning,) = check(gluon.nn.Conv2D(4, 3))
    assert warning.startswith(
        'the input "data" (4, 8, 8, 3) float32 looks like images with the channels last'
    )
    assert "a convolution takes the 8 rows for channels" in warning and WAY_OUT in warning


def test_images_as_meant_are_not() -> None:
    moved = gluon.nn.HybridLambda(lambda F, x: F.transpose(x, (0, 3, 1, 2)))
    assert check(moved, gluon.nn.Conv2D(8, 3), gluon.nn.Conv2D(4, 3)) == check(gluon.nn.Dense(4)) == []


@pytest.mark.parametrize(("channels", "options"), [(1, {}), (3, {"in_channels": 3})])
def test_an_error_of_a_convolution_says_so(channels: int, options: dict) -> None:
    with pytest.raises(mx.MXNetError if options else ValueError, match=re.escape(WAY_OUT)):
        check(gluon.nn.Conv2D(4, 3, **options), channels=channels)


CE, BCE = gluon.loss.SoftmaxCrossEntropyLoss, gluon.loss.SigmoidBinaryCrossEntropyLoss
BATCH = (nd.array(np.random.RandomState(0).randn(8, 4)), nd.array([0, 1, 2, 0, 1, 2, 0, 1]))


def warnings_of(last, loss, units=3, label=BATCH[1], missing=None, measured=None):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(units), gluon.nn.HybridLambda(last))
    losses, metrics = {"ce": LossSpec(loss, "scores", "class")}, {"m": measured} if measured else {}
    labels = [LabelSpec("class", missing=missing)]
    spec = TaskSpec(outputs=["scores"], labels=labels, losses=losses, metrics=metrics)
    plan = MultiEstimator(net, spec).check([(BATCH[0], label)])
    return [notice for notice in plan.notices if notice.startswith(("losses", "metrics"))]


def test_a_softmax_before_the_losss_own_is_warned_of():
    (warning,) = warnings_of(lambda F, x: F.softmax(x), CE())
    assert warning.startswith('losses["ce"]: the output "scores" adds up to 1 over its classes')


def test_a_net_may_apply_it_in_evaluation_alone():
    class Net(gluon.Block):
        def __init__(self):
            super().__init__()
            self.dense = gluon.nn.Dense(3)

        def forward(self, x):
            return self.dense(x) if autograd.is_training() else self.dense(x).softmax()

    plan = MultiEstimator(Net(), CE()).check([BATCH], [BATCH])
    assert sum("softmax itself" in notice for notice in plan.notices) == 1


@pytest.mark.parametrize(
    ("last", "loss", "units"),
    [
        (lambda F, x: x, CE(), 3),
        (lambda F, x: F.sigmoid(x), CE(), 3),  # not negative, but of any sum
        (lambda F, x: F.softmax(x) * 10 - 3, CE(), 3),  # adds up to 1, but is negative in places
        (lambda F, x: F.softmax(x), lambda p, c: -nd.log(nd.pick(p, c)), 3),
        (lambda F, x: F.log_softmax(x), CE(from_logits=True), 3),
        (lambda F, x: F.sigmoid(x), BCE(from_sigmoid=True), 1),
        (lambda F, x: x, BCE(), 1),
    ],
    ids=["scores", "sigmoid", "negative", "a loss of one's own", "from_logits", "from_sigmoid", "logit"],
)
def test_what_is_as_meant_is_not(last, loss, units):
    assert warnings_of(last, loss, units, BATCH[1] if units == 3 else BATCH[1] > 0) == []


def test_one_class_is_no_softmax():
    assert warnings_of(lambda F, x: F.ones_like(x) + 0 * x, CE(), 1, nd.zeros(8)) == []


def test_from_logits_and_from_sigmoid_are_checked():
    (warning,) = warnings_of(lambda F, x: x, CE(from_logits=True))
    assert "is not the logarithm of probabilities, which from_logits=True means in Gluon" in warning
    (warning,) = warnings_of(lambda F, x: x * 0 - 2, BCE(from_sigmoid=True), 1, BATCH[1] > 0)
    assert 'the output "scores" holds -2, which no sigmoid returns' in warning


def test_a_sigmoids_labels_are_probabilities():
    (warning,) = warnings_of(lambda F, x: x, BCE(), 1, 2 * (BATCH[1] > 0) - 1)
    assert 'the label "class" holds -1, but SigmoidBinaryCrossEntropyLoss takes 0 … 1' in warning
    assert warnings_of(lambda F, x: x, BCE(), 1, 2 * (BATCH[1] > 0) - 1, missing=-1) == []


def test_a_divergence_is_of_probabilities():
    """A student's scores and a teacher's, as a Keras user gives them; then as Gluon's loss takes them."""
    kl, chances, scores = gluon.loss.KLDivLoss, nd.array([[1, 0, 0]] * 8), nd.array([[2, -1, 0]] * 8)
    first, second = warnings_of(lambda F, x: x, kl(), label=scores)
    assert first.endswith("for scores, give KLDivLoss(from_logits=False)")
    assert 'the label "class" holds 2, but KLDivLoss takes 0 … 1' in second
    assert warnings_of(lambda F, x: F.log_softmax(x), kl(), label=chances) == []
    assert warnings_of(lambda F, x: x, kl(from_logits=False), label=chances) == []


def test_a_metric_of_probabilities_says_how_to_make_them():
    named = {"outputs": "scores", "labels": "class"}
    wrong = MetricSpec(metric.CrossEntropy(), **named)
    (warning,) = warnings_of(lambda F, x: x * 0 + 3, CE(), measured=wrong)
    assert warning.startswith('metrics["m"]: the output "scores" holds 3, but CrossEntropy takes probab')
    fixed = MetricSpec(metric.CrossEntropy(), **named, transform=lambda out, label: (label, nd.softmax(out)))
    assert warnings_of(lambda F, x: x * 0 + 3, CE(), measured=fixed) == []


L2 = gluon.loss.L2Loss()


class Net(gluon.HybridBlock):
    """A body and two heads, whose results are `joined`."""

    def __init__(self, joined: Any) -> None:
        super().__init__()
        self.joined = joined
        self.body, self.first, self.second = (gluon.nn.Dense(2) for _ in range(3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.joined(F, self.body(x), self.first, self.second)


BOTH = Net(lambda F, body, first, second: (first(body), second(body)))
BLOCKED = Net(lambda F, body, first, second: (first(body), F.BlockGrad(second(body))))
BLOCKED_BODY = Net(lambda F, body, first, second: (first(F.BlockGrad(body)), second(F.round(body))))
WORDS = "so at most weight decay changes them"


def warnings(net: Any, losses: dict[str, Any], hybridized: bool = True, **options: Any) -> list[str]:
    net.hybridize(hybridized)
    unused = [name for name in ("one", "two") if name not in losses]
    specs = {name: LossSpec(options.pop("fn", L2), name, "y", weight=w) for name, w in losses.items()}
    spec = TaskSpec(inputs="x", outputs=["one", "two"], labels="y", losses=specs, unused=unused)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "wd": 0.1})
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    notices = MultiEstimator(net, spec, trainer, **options).check([batch]).notices
    return [notice for notice in notices if WORDS in notice]


@pytest.mark.parametrize(
    ("net", "losses", "block"),
    [
        (BOTH, {"one": 1}, "second"),
        (BOTH, {"one": 1, "two": 0}, "second"),
        (BLOCKED, {"one": 1, "two": 1}, "second"),
        (BLOCKED_BODY, {"one": 1, "two": 1}, "body"),
    ],
    ids=["an output without a loss", "a loss of weight 0", "BlockGrad", "operators without a gradient"],
)
def test_parameters_without_a_gradient(net: Net, losses: dict[str, float], block: str) -> None:
    assert warnings(net, losses) == [
        f'no loss\'s gradient reaches "{block}.weight", "{block}.bias", {WORDS}: an operator such as '
        "BlockGrad stops it, or only outputs without a loss depend on them; pass "
        f'frozen=["{block}.*"], or give them a loss'
    ]
    assert not warnings(net, losses, frozen=[f"{block}.*"])  # the way out


@pytest.mark.parametrize(
    ("net", "losses", "hybridized"),
    [
        (BOTH, {"one": 1, "two": 1}, True),
        (BOTH, {"one": 1, "two": lambda state: 0.0}, True),  # which may grow
        (BLOCKED, {"one": 1}, False),  # it has no graph
    ],
    ids=["all have one", "a weight that changes", "not hybridized"],
)
def test_no_warning(net: Net, losses: dict[str, Any], hybridized: bool) -> None:
    assert not warnings(net, losses, hybridized)


class OfHead(gluon.HybridBlock):
    """Applies a head of the net to its features itself, as losses of proxies do."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.l2 = head, gluon.loss.L2Loss()

    def hybrid_forward(self, F: Any, features: Any, label: Any) -> Any:
        return self.l2(self.head(features), label)


def test_a_loss_may_train_a_layer_of_the_net() -> None:
    net = Net(lambda F, body, first, second: (first(body), F.BlockGrad(second(body))))
    loss = OfHead(net.second)
    loss.hybridize()
    assert not warnings(net, {"one": 1}, fn=loss)


class TrainsSecond:
    def change_objective(self, estimator: Any, objectives: list[Any], pred: Any) -> list[Any]:
        return objectives + [output.mean().reshape((1,)) for output in pred["two"]]


def test_a_handler_may_train_an_output(caplog: pytest.LogCaptureFixture) -> None:
    net = Net(BOTH.joined)
    net.hybridize()
    losses = {"one": LossSpec(L2, "one", "y")}
    spec = TaskSpec(outputs=["one", "two"], labels=["y"], losses=losses, inputs=["x"], unused=["two"])
    batch = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    for handlers, warned in (([TrainsSecond()], False), ([], True)):
        caplog.clear()
        MultiEstimator(net, spec).fit([batch], epochs=1, event_handlers=handlers)
        assert any(WORDS in record.getMessage() for record in caplog.records) is warned
