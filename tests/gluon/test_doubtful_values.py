"""What is probably not meant is warned of: channels last, a softmax too many, parameters without gradient."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec, TrainerSpec
from tests.common.nets import sequential

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon, metric, nd  # isort: skip
from mxnet.gluon import nn  # isort: skip

CE, BCE, KL, L2 = (
    getattr(gluon.loss, name)
    for name in ("SoftmaxCrossEntropyLoss", "SigmoidBinaryCrossEntropyLoss", "KLDivLoss", "L2Loss")
)

# ---- channels last -----------------------------------------------------------------------------------------

WAY_OUT = "images are (N, C, H, W): give the dataset the ToTensor() of gluon.data.vision.transforms or"


def check_images(*blocks: Any, channels: int = 3) -> list[str]:
    batch = np.ones((4, 8, 8, channels), "float32"), np.zeros(4, "float32")
    plan = MultiEstimator(sequential(*blocks, nn.Dense(2)), CE()).check([batch])
    return [notice for notice in plan.notices if "channels last" in notice]


def test_a_convolution_over_the_rows_is_warned_of() -> None:
    (warning,) = check_images(nn.Conv2D(4, 3))
    assert warning.startswith(
        'the input "data" (4, 8, 8, 3) float32 looks like images with the channels last'
    )
    assert "a convolution takes the 8 rows for channels" in warning and WAY_OUT in warning
    moved = nn.HybridLambda(lambda F, x: F.transpose(x, (0, 3, 1, 2)))  # as meant
    assert check_images(moved, nn.Conv2D(8, 3), nn.Conv2D(4, 3)) == check_images(nn.Dense(4)) == []


@pytest.mark.parametrize(
    ("channels", "options", "error"), [(1, {}, ValueError), (3, {"in_channels": 3}, mx.MXNetError)]
)
def test_an_error_of_a_convolution_says_so(channels: int, options: Any, error: Any) -> None:
    with pytest.raises(error, match=re.escape(WAY_OUT)):
        check_images(nn.Conv2D(4, 3, **options), channels=channels)


# ---- values ------------------------------------------------------------------------------------------------

X, CLASSES = nd.array(np.random.RandomState(0).randn(8, 4)), nd.array([0, 1, 2, 0, 1, 2, 0, 1])
YES, SIGNS = CLASSES > 0, 2 * (CLASSES > 0) - 1
CHANCES, SCORES = nd.array([[1, 0, 0]] * 8), nd.array([[2, -1, 0]] * 8)
OUTPUT, LABEL = 'losses["ce"]: the output "scores" ', 'losses["ce"]: the label "class" '
OF_CHANCES = MetricSpec(metric.CrossEntropy(), "scores", "class")
AS_CHANCES = MetricSpec(
    metric.CrossEntropy(), "scores", "class", transform=lambda out, label: (label, nd.softmax(out))
)
# fmt: off
# what the net returns, the loss, the label, and the warnings, with further options
VALUES: dict[str, Any] = {
    "softmax": (lambda F, x: F.softmax(x), CE(), CLASSES, [f"{OUTPUT}adds up to 1 over its classes"]),
    "from_logits": (lambda F, x: x, CE(from_logits=True), CLASSES,
        [f"{OUTPUT}is not the logarithm of probabilities, which from_logits=True means in Gluon"]),
    "from_sigmoid": (lambda F, x: x * 0 - 2, BCE(from_sigmoid=True), YES,
        [f"{OUTPUT}holds -2, which no sigmoid returns"]),
    "signs": (lambda F, x: x, BCE(), SIGNS,
        [f"{LABEL}holds -1, but SigmoidBinaryCrossEntropyLoss takes 0 … 1"]),
    # a student's scores and a teacher's, as a Keras user gives them
    "divergence of scores": (lambda F, x: x, KL(), SCORES,
        ["for scores, give KLDivLoss(from_logits=False)",
         f"{LABEL}holds 2, but KLDivLoss takes 0 … 1"]),
    "a metric of chances": (lambda F, x: x * 0 + 3, CE(), CLASSES,
        ['metrics["m"]: the output "scores" holds 3, but CrossEntropy takes probab'], OF_CHANCES),
    # as meant
    "chances for a metric": (lambda F, x: x * 0 + 3, CE(), CLASSES, [], AS_CHANCES),
    "divergence": (lambda F, x: F.log_softmax(x), KL(), CHANCES, []),
    "divergence from scores": (lambda F, x: x, KL(from_logits=False), CHANCES, []),
    "signs that are missing": (lambda F, x: x, BCE(), SIGNS, [], None, -1),
    "scores": (lambda F, x: x, CE(), CLASSES, []),
    "not negative, but of any sum": (lambda F, x: F.sigmoid(x), CE(), CLASSES, []),
    "of sum 1, but negative": (lambda F, x: F.softmax(x) * 10 - 3, CE(), CLASSES, []),
    "a loss of one's own": (lambda F, x: F.softmax(x), lambda p, c: -nd.log(nd.pick(p, c)), CLASSES, []),
    "logarithms": (lambda F, x: F.log_softmax(x), CE(from_logits=True), CLASSES, []),
    "sigmoid": (lambda F, x: F.sigmoid(x), BCE(from_sigmoid=True), YES, []),
    "logit": (lambda F, x: x, BCE(), YES, []),
    "one class": (lambda F, x: F.ones_like(x) + 0 * x, CE(), nd.zeros(8), []),
}
# fmt: on
ONE = {"from_sigmoid", "signs", "signs that are missing", "sigmoid", "logit", "one class"}  # score a sample


@pytest.mark.parametrize("name", VALUES)
def test_values_for_which_a_loss_or_a_metric_was_hardly_meant(name: str) -> None:
    last, loss, label, expected, measured, missing = (*VALUES[name], None, None)[:6]
    net = sequential(nn.Dense(1 if name in ONE else 3), nn.HybridLambda(last))
    spec = TaskSpec(
        outputs=["scores"], labels=[LabelSpec("class", missing=missing)],
        losses={"ce": LossSpec(loss, "scores", "class")}, metrics={"m": measured} if measured else {},
    )  # fmt: skip
    notices = MultiEstimator(net, spec).check([(X, label)]).notices
    found = [notice for notice in notices if notice.startswith(("losses", "metrics"))]
    assert len(found) == len(expected) and all(map(str.__contains__, found, expected)), found


def test_a_net_may_apply_softmax_in_evaluation_alone() -> None:
    class Net(gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.dense(x) if autograd.is_training() else self.dense(x).softmax()

    plan = MultiEstimator(Net(), CE()).check([(X, CLASSES)], [(X, CLASSES)])
    assert sum("softmax itself" in notice for notice in plan.notices) == 1


# ---- parameters without a gradient -------------------------------------------------------------------------


class Net(gluon.HybridBlock):
    """A body and two heads, whose results are `joined`."""

    def __init__(self, joined: str) -> None:
        super().__init__()
        self.joined = JOINED[joined]
        self.body, self.first, self.second = (nn.Dense(2) for _ in range(3))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.joined(F, self.body(x), self.first, self.second)


JOINED: dict[str, Callable[..., Any]] = {
    "both": lambda F, body, first, second: (first(body), second(body)),
    "blocked": lambda F, body, first, second: (first(body), F.BlockGrad(second(body))),
    "blocked body": lambda F, body, first, second: (first(F.BlockGrad(body)), second(F.round(body))),
}
WORDS = "so at most weight decay changes them"
BATCH = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


def estimator_of(net: Any, losses: dict[str, Any], fn: Any = None, **options: Any) -> MultiEstimator:
    unused = [name for name in ("one", "two") if name not in losses]
    specs = {name: LossSpec(fn or L2(), name, "y", weight=weight) for name, weight in losses.items()}
    spec = TaskSpec(inputs="x", outputs=["one", "two"], labels="y", losses=specs, unused=unused)
    trainer = TrainerSpec(".*", "sgd", {"learning_rate": 0.1, "wd": 0.1})
    return MultiEstimator(net, spec, trainer, **options)


def warnings(net: Any, losses: dict[str, Any], hybridized: bool = True, **options: Any) -> list[str]:
    net.hybridize(hybridized)
    notices = estimator_of(net, losses, **options).check([BATCH]).notices
    return [notice for notice in notices if WORDS in notice]


@pytest.mark.parametrize(
    ("joined", "losses", "hybridized", "block"),
    [
        ("both", {"one": 1}, True, "second"), ("both", {"one": 1, "two": 0}, True, "second"),
        ("blocked", {"one": 1, "two": 1}, True, "second"),
        ("blocked body", {"one": 1, "two": 1}, True, "body"),
        ("both", {"one": 1, "two": 1}, True, None),
        ("both", {"one": 1, "two": lambda state: 0.0}, True, None),  # which may grow
        ("blocked", {"one": 1}, False, None),  # it has no graph
    ],
)  # fmt: skip
def test_parameters_without_a_gradient(
    joined: str, losses: dict[str, Any], hybridized: bool, block: str | None
) -> None:
    net = Net(joined)
    message = (
        f'no loss\'s gradient reaches "{block}.weight", "{block}.bias", {WORDS}: an operator such as '
        "BlockGrad stops it, or only outputs without a loss depend on them; pass "
        f'frozen=["{block}.*"], or give them a loss'
    )
    assert warnings(net, losses, hybridized) == ([message] if block else [])
    assert block is None or not warnings(net, losses, frozen=[f"{block}.*"])  # the way out


class OfHead(gluon.HybridBlock):
    """Applies a head of the net to its features itself, as losses of proxies do."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.l2 = head, L2()

    def hybrid_forward(self, F: Any, features: Any, label: Any) -> Any:
        return self.l2(self.head(features), label)


def test_a_loss_may_train_a_layer_of_the_net() -> None:
    net = Net("blocked")
    loss = OfHead(net.second)
    loss.hybridize()
    assert not warnings(net, {"one": 1}, fn=loss)


class TrainsSecond:
    def change_objective(self, estimator: Any, objectives: list[Any], pred: Any) -> list[Any]:
        return objectives + [output.mean().reshape((1,)) for output in pred["two"]]


def test_a_handler_may_train_an_output(caplog: Any) -> None:
    for handlers, warned in (([TrainsSecond()], False), ([], True)):
        net = Net("both")
        net.hybridize()
        estimator_of(net, {"one": 1}).fit([BATCH], epochs=1, event_handlers=handlers)
        assert (WORDS in caplog.text) is warned
