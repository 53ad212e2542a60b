"""bfloat16 is offered only where MXNet can compute in it."""

import pytest

from multifit.gluon import precision as precisions
from multifit.gluon.precision import Rules

import mxnet as mx  # isort: skip


def test_the_answer_is_that_of_onednn():
    supported = precisions.cpu_supports_bfloat16()
    product = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("w"), num_hidden=1, no_bias=True)
    (lowered,), _ = precisions.lower([product], "bfloat16", Rules(low=("FullyConnected",), either=()))
    try:
        result = mx.nd.CachedOp(lowered)(mx.nd.ones((1, 2)), mx.nd.ones((1, 2))).asnumpy()
    except mx.base.MXNetError:
        assert not supported
    else:
        assert supported and result == 2


def test_a_cpu_that_can_and_one_that_cannot_are_recognised(monkeypatch):
    monkeypatch.setattr(precisions, "lower", lambda symbols, dtype, rules: (symbols, 0))
    assert precisions.cpu_supports_bfloat16.__wrapped__() is True
    failing = mx.sym.dot(mx.sym.var("x"), mx.sym.ones((7, 7)))
    monkeypatch.setattr(precisions, "lower", lambda symbols, dtype, rules: ([failing], 1))
    assert precisions.cpu_supports_bfloat16.__wrapped__() is False


def test_bfloat16_depends_on_the_cpu(monkeypatch):
    contexts = [mx.cpu(0), mx.cpu(1)]
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: True)
    assert precisions.precision_of("bfloat16", contexts).name == "bfloat16"
    monkeypatch.setattr(precisions, "cpu_supports_bfloat16", lambda: False)
    with pytest.raises(ValueError, match='"bfloat16", which this CPU .* AVX512; give precision="float32"'):
        precisions.precision_of("bfloat16", contexts)
    assert precisions.precision_of("float32", contexts).rules is None


def test_bfloat16_on_a_gpu_is_an_error():
    """Also on a machine without a GPU."""
    gpus = [mx.gpu(0), mx.gpu(1)]
    for contexts in (gpus, [mx.cpu(1), *gpus]):
        with pytest.raises(ValueError, match=r'on gpu\(0\); give precision="float32", or a context of CPUs'):
            precisions.precision_of("bfloat16", contexts)
    assert precisions.precision_of("float32", gpus).rules is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "bfloat",
            'precision is \'bfloat\' (did you mean "bfloat16"?); valid are "float32", "bfloat16", "fl',
        ),
        ("float16", 'precision is "float16", which MXNet cannot train in; give precision="bfloat16" or'),
        (16, 'precision is 16; valid are "float32"'),
    ],
)
def test_an_unknown_precision_is_an_error(name, message):
    with pytest.raises(ValueError) as error:
        precisions.precision_of(name, [mx.cpu()])
    assert str(error.value).startswith(message)
