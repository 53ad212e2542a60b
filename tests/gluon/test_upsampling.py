"""A transposed convolution computed as a convolution: equal, and only where it is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifit import LossSpec, MultiEstimator, TaskSpec, TrainerSpec
from multifit.gluon.upsampling import Form, as_convolutions, enlarged

import mxnet as mx  # isort: skip
from mxnet import autograd, gluon
from mxnet.gluon import nn

RNG = np.random.RandomState(3)


@pytest.fixture(autouse=True)
def one_thread(with_threads):
    with_threads(1)


def arrays(maps: int, form: Form, bias: bool) -> list[Any]:
    """Return maps, a kernel and a bias, or None."""
    made = [RNG.randn(2, maps, 5, 3), RNG.randn(maps, form.maps, *form.kernel), RNG.randn(form.maps)]
    return [mx.nd.array(each) for each in made[: 2 + bias]] + [None] * (not bias)


def native(data: Any, weight: Any, bias: Any, form: Form, adj: tuple[int, int] = (0, 0)) -> Any:
    more = {"no_bias": True} if bias is None else {"bias": bias, "no_bias": False}
    sizes = {"kernel": form.kernel, "stride": form.stride, "pad": form.pad, "adj": adj}
    return mx.nd.Deconvolution(data=data, weight=weight, num_filter=form.maps, **sizes, **more)


def with_gradients(function: Any, given: list[Any]) -> list[Any]:
    """Return the values, and the gradients of their sum weighted at random."""
    given = [each if each is None else each.copy() for each in given]
    for each in filter(lambda each: each is not None, given):
        each.attach_grad()
    with autograd.record():
        value = function(*given)
    value.backward(mx.nd.array(np.random.RandomState(0).randn(*value.shape)))
    return [value.asnumpy(), *[each.grad.asnumpy() for each in given if each is not None]]


EVEN = [
    (Form(4, (16, 16), (8, 8), (4, 4)), (0, 0)),  # an FCN's: twice the stride, half of it cut off
    (Form(2, (8, 8), (4, 4), (2, 2)), (0, 0)),
    (Form(3, (4, 5), (4, 5), (0, 0)), (0, 0)),  # the squares do not overlap
    (Form(1, (12, 8), (4, 4), (4, 2)), (0, 0)),  # rows unlike columns
    (Form(5, (4, 4), (2, 2), (1, 1)), (0, 0)),
    (Form(2, (7, 7), (4, 4), (2, 2)), (1, 1)),  # a size adjusted by one
    (Form(2, (3, 3), (1, 1), (1, 1)), (0, 0)),
]


@pytest.mark.parametrize(("form", "adj"), EVEN)
@pytest.mark.parametrize("maps", [1, 4, 11])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_mxnet(form, adj, maps, bias):
    assert form.is_even(adj)
    given = arrays(maps, form, bias)
    ours = with_gradients(lambda *each: enlarged(mx.nd, *each, form), given)
    theirs = with_gradients(lambda *each: native(*each, form, adj), given)
    for a, b in zip(ours, theirs):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * abs(b).max())


@pytest.mark.parametrize(
    ("form", "adj"),
    [
        (Form(2, (7, 7), (4, 4), (2, 2)), (0, 0)),  # smaller than its squares
        (Form(2, (3, 3), (2, 2), (0, 0)), (0, 0)),
        (Form(2, (8, 7), (4, 4), (2, 2)), (0, 0)),  # the columns are not even
        (Form(2, (4, 4), (4, 4), (8, 8)), (0, 0)),  # more is cut off than there is
    ],
)
def test_what_is_not_squares_alone_is_known(form, adj):
    assert not form.is_even(adj)


class Net(nn.HybridBlock):
    """A transposed convolution between a convolution and a use of both of them."""

    def __init__(self, channels=4, maps=4, kernel=8, stride=4, **more) -> None:
        super().__init__()
        with self.name_scope():
            self.body = nn.Conv2D(channels, 3, stride, 1)
            self.enlarge = nn.Conv2DTranspose(maps, kernel, stride, (kernel - stride) // 2, **more)

    def hybrid_forward(self, F: Any, image: Any) -> Any:
        """Return scores at both sizes."""
        small = self.body(image)
        return self.enlarge(small), small


def initialised(net: Any) -> Any:
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 16, 16)))
    return net


def rewritten(net: Any) -> tuple[list[Any], list[Any], int]:
    symbols = list(net(mx.sym.var("image")))
    return symbols, *as_convolutions(symbols, net.collect_params().values())


def run(symbols: list[Any], net: Any, image: Any) -> list[Any]:
    given = {p.name: p.data() for p in net.collect_params().values()} | {"image": image}
    group = mx.sym.Group(symbols)
    return mx.nd.CachedOp(group)(*[given[name] for name in group.list_inputs()])


def test_a_graph_is_of_the_same_variables_and_gives_the_same():
    net = initialised(Net())
    before, after, count = rewritten(net)
    assert count == 1
    assert "Deconvolution" not in mx.sym.Group(after).tojson()
    assert set(mx.sym.Group(before).list_inputs()) == set(mx.sym.Group(after).list_inputs())
    image = mx.nd.array(RNG.randn(2, 3, 16, 16))
    for a, b in zip(run(before, net, image), run(after, net, image)):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": 4, "stride": 2},  # MXNet is faster
        {"channels": 8},
        {"channels": 16},
        {"maps": 17},
        {"groups": 2, "in_channels": 4},
        {"kernel": 6, "dilation": 2},
        {"kernel": 7},  # smaller than its squares
    ],
)
def test_all_others_are_left_to_mxnet(other):
    before, after, count = rewritten(initialised(Net(**other)))
    assert count == 0
    assert "Deconvolution" in mx.sym.Group(after).tojson()


def test_a_graph_without_any_stays_the_same():
    symbols = [nn.Dense(2)(mx.sym.var("image"))]
    assert as_convolutions(symbols, []) == (symbols, 0)


def test_a_volume_is_left_to_mxnet():
    net = nn.Conv3DTranspose(2, 4, 4, in_channels=2)
    symbols = [net(mx.sym.var("image"))]
    assert as_convolutions(symbols, net.collect_params().values())[1] == 0


def test_a_kernel_that_is_computed_is_left_to_mxnet():
    made = mx.sym.var("weight") * 2
    symbols = [mx.sym.Deconvolution(mx.sym.var("image"), made, kernel=(4, 4), stride=(4, 4), num_filter=2)]
    assert as_convolutions(symbols, [])[1] == 0


def test_with_several_threads_and_on_gpus_nothing_changes(with_threads):
    net = initialised(Net())
    with mx.gpu(0):
        before, after, count = rewritten(net)
    assert (after, count) == (before, 0)
    with_threads(2)
    before, after, count = rewritten(net)
    assert (after, count) == (before, 0)


def spec() -> TaskSpec:
    loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    losses = {"ce": LossSpec(loss, "scores", "mask")}
    return TaskSpec(["scores", "small"], ["mask"], losses, unused=["small"])


def test_a_fit_ends_as_the_hand_written_loop_does_and_the_plan_says_it():
    batches = [
        (mx.nd.array(RNG.randn(4, 3, 16, 16)), mx.nd.array(RNG.randint(0, 4, (4, 16, 16)))) for _ in range(6)
    ]
    ours, theirs = initialised(Net()), initialised(Net())
    for mine, other in zip(ours.collect_params().values(), theirs.collect_params().values()):
        other.set_data(mine.data())
    ours.hybridize()
    estimator = MultiEstimator(ours, spec(), trainers=TrainerSpec(".*", "sgd", {"learning_rate": 0.5}))
    estimator.fit(batches, epochs=1)
    loss = gluon.loss.SoftmaxCrossEntropyLoss(axis=1)
    trainer = gluon.Trainer(theirs.collect_params(), "sgd", {"learning_rate": 0.5})
    for image, mask in batches:
        with autograd.record():
            value = loss(theirs(image)[0], mask)
        value.backward()
        trainer.step(4)
    for mine, other in zip(ours.collect_params().values(), theirs.collect_params().values()):
        np.testing.assert_allclose(mine.data().asnumpy(), other.data().asnumpy(), rtol=1e-4, atol=1e-5)
    assert "1 transposed convolution computed as convolutions" in str(estimator.plan)


def test_a_fit_in_two_parts_ends_bit_for_bit_as_one():
    batches = [
        (mx.nd.array(RNG.randn(4, 3, 16, 16)), mx.nd.array(RNG.randint(0, 4, (4, 16, 16)))) for _ in range(6)
    ]
    ends = []
    for parts in ([batches], [batches[:3], batches[3:]]):  # the first batch of each is checked
        mx.random.seed(0)
        net = initialised(Net())
        net.hybridize()
        estimator = MultiEstimator(net, spec(), trainers=TrainerSpec(".*", "sgd", {"learning_rate": 0.5}))
        for part in parts:
            estimator.fit(part, epochs=1)
        ends.append([parameter.data().asnumpy() for parameter in net.collect_params().values()])
    for whole, parted in zip(*ends):
        np.testing.assert_array_equal(whole, parted)
