"""Losses and metrics that take an output or a label for something else are warned of."""

import numpy as np
import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, MultiEstimator, TaskSpec

from mxnet import autograd, gluon, metric, nd  # isort: skip

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
    assert 'the label "class" holds 2, but KLDivLoss takes probabilities for its targets' in second
    assert warnings_of(lambda F, x: F.log_softmax(x), kl(), label=chances) == []
    assert warnings_of(lambda F, x: x, kl(from_logits=False), label=chances) == []


def test_a_metric_of_probabilities_says_how_to_make_them():
    named = {"outputs": "scores", "labels": "class"}
    wrong = MetricSpec(metric.CrossEntropy(), **named)
    (warning,) = warnings_of(lambda F, x: x * 0 + 3, CE(), measured=wrong)
    assert warning.startswith('metrics["m"]: the output "scores" holds 3, but CrossEntropy takes probab')
    fixed = MetricSpec(metric.CrossEntropy(), **named, transform=lambda out, label: (label, nd.softmax(out)))
    assert warnings_of(lambda F, x: x * 0 + 3, CE(), measured=fixed) == []
