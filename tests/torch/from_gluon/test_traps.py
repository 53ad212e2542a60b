"""Operators beyond the table: what differs from MXNet, random numbers, modes, types, other sizes."""

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators.detection import roi_align
from multifit.torch.from_gluon.operators.indexing import pick
from multifit.torch.from_gluon.operators.layers import bilinear_resize, fully_connected, scaled
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import in_mxnet, in_torch, normal
from tests.torch.from_gluon.test_operators import NAN, OF_ONE_VALUE, POOLED, Row, is_refused

S = mx.sym


def run(make: Callable[..., Any], *arrays: Any, training: bool = True) -> torch.Tensor:
    """Return the translation's first output."""
    names = [f"x{i}" for i in range(len(arrays))]
    module = translate(make(*map(S.var, names)).tojson(), names, {}, training)
    return module(*map(torch.as_tensor, arrays))[0]


def test_a_mean_that_begins_beyond_the_map_is_refused() -> None:
    refused = [each for each in POOLED if is_refused(**each)]
    assert refused
    for attributes in refused:
        with pytest.raises(ValueError, match="a mean begins beyond the map"):
            run(partial(S.Pooling, **attributes), normal(2, 3, 8, 7))


@pytest.mark.parametrize("row", OF_ONE_VALUE)
def test_a_norm_of_one_value_is_the_shift_in_its_type(row: Row) -> None:
    x, *others = (torch.from_numpy(each).float() for each in row.arrays)
    output = run(row.make, x.bfloat16(), *others)  # parameters stay as they are
    assert output.dtype == torch.bfloat16
    np.testing.assert_allclose(run(row.make, x, *others).ravel(), np.tile(others[1], output.numel() // 3))


ZEROS = np.zeros((2, 3))
# what docs/leaving-mxnet.md lists, with our output or gradient, and MXNet's if it is always the same
DIFFERENT = {
    "topk": ("output", partial(S.topk, k=4, axis=1), np.zeros((1, 17)), [0, 1, 2, 3], None),
    "argsort": ("output", partial(S.argsort, axis=1), np.zeros((1, 17)), range(17), None),
    "cast": ("gradient", lambda x: 1.75 * S.cast(S.cast(x, "int32"), "float64"), ZEROS, 0, None),
    "norm": ("gradient", partial(S.norm, axis=1), ZEROS, 0, NAN),
    "power": ("gradient", lambda x: x**0, ZEROS, 0, NAN),
    "prod": ("gradient", S.prod, ZEROS, 0, NAN),
    "relu": ("gradient", S.relu, np.array([NAN]), 1, NAN),
    "clip": ("gradient", partial(S.clip, a_min=0, a_max=9), np.array([NAN]), 0, 1),
    "pool": ("output", partial(S.Pooling, kernel=4), np.array([[[NAN, 1, 2, 3]]]), NAN, 3),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs(name: str) -> None:
    kind, make, x, ours, mxnets = DIFFERENT[name]
    symbol, at = make(S.var("x0")), ("output", "gradient").index(kind)
    theirs, heads = in_mxnet(symbol, {"x0": x}, ["x0"], True)
    found = in_torch(symbol, {"x0": x}, ["x0"], True, heads)
    scale = np.abs(heads[0]).item() if at and heads[0].size == 1 else 1  # the gradient that arrives
    np.testing.assert_array_equal(np.ravel(found[at][0]) / scale, np.full(found[at][0].size, ours))
    assert not np.array_equal(found[at][0], theirs[at][0], equal_nan=True)
    if mxnets is not None:
        np.testing.assert_array_equal(np.abs(theirs[at][0] / scale), np.full(theirs[at][0].shape, mxnets))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("attributes", [{}, {"mode": "always"}, {"axes": (1,)}, {"p": 0}], ids=str)
def test_dropout(attributes: dict[str, Any], training: bool) -> None:
    x = torch.ones(200, 50)
    out = run(partial(S.Dropout, **{"p": 0.25, **attributes}), x, training=training)
    if attributes == {"p": 0} or not training and "mode" not in attributes:
        assert out is x
    else:
        assert out.unique().tolist() == [0, pytest.approx(4 / 3)]
        assert out.mean().item() == pytest.approx(1, abs=0.1)
        assert (out.std(1).max().item() == 0) == ("axes" in attributes)


DISTRIBUTIONS = [
    (lambda x: S.random.uniform(1, 3, shape=(100, 100)), 2, 3**-0.5),
    (lambda x: S.random.normal(1, 3, shape=(100, 100)), 1, 3),
    (lambda x: S.random.uniform_like(x, low=1, high=3), 2, 3**-0.5),
    (lambda x: S.random.normal_like(x, loc=1, scale=3), 1, 3),
]


@pytest.mark.parametrize(("make", "mean", "deviation"), DISTRIBUTIONS)
def test_random_numbers(make: Any, mean: float, deviation: float) -> None:
    torch.manual_seed(0)
    first, second = (run(lambda x: S.Group([make(x), x]), torch.zeros(100, 100)) for _ in range(2))
    assert first.mean().item() == pytest.approx(mean, abs=0.1)
    assert first.std().item() == pytest.approx(deviation, rel=0.03)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("kinds", [*itertools.product(["float16", "float32"], repeat=2)], ids="-".join)
def test_types_that_are_made_one(kinds: Any, narrow: bool) -> None:
    symbol = S.Group(list(S.amp_multicast(*map(S.var, "xy"), num_outputs=2, cast_narrow=narrow)))
    expected = symbol.infer_type(x=kinds[0], y=kinds[1])[1]  # MXNet cannot compute all of them
    module = translate(symbol.tojson(remove_amp_cast=False), ["x", "y"], {})
    found = module(*[torch.tensor([1.5, 2.5], dtype=getattr(torch, kind)) for kind in kinds])
    assert [each.numpy().dtype for each in found] == expected
    assert all(each.tolist() == [1.5, 2.5] for each in found)


@pytest.mark.parametrize("training", [False, True])
def test_a_recurrent_layer_that_evaluates_has_gradients(monkeypatch: Any, training: bool) -> None:
    modes, lstm = [], torch.lstm

    def watched(*arguments: Any) -> Any:
        modes.append(arguments[5:7])
        return lstm(*arguments)

    monkeypatch.setattr(torch, "lstm", watched)
    net = partial(S.RNN, mode="lstm", state_size=2, num_layers=2, p=0.5)
    arrays = [normal(4, 3, 2), normal(2 * 4 * 2 * (2 + 2 + 2)), normal(2, 3, 2), normal(2, 3, 2)]
    run(net, *arrays, training=training)
    with torch.no_grad():
        run(net, *arrays, training=training)
    assert modes == ([(0.5, True)] * 2 if training else [(0.0, True), (0.0, False)])


@pytest.mark.parametrize("scale", [0.1, 0.29, 1 / 3, 0.57, 1.1, 2.2])
def test_resizing_by_a_scale_makes_the_same_sizes(scale: float) -> None:
    symbol = S.contrib.BilinearResize2D(S.var("x"), scale_height=scale, scale_width=scale)
    for size in [*range(10, 400, 5), 512, 1024]:
        ours = scaled(size, scale), scaled(1024, scale)
        assert symbol.infer_shape(x=(1, 1, size, 1024))[1][0][2:] == ours


def test_resizing_by_a_scale_is_compiled_for_several_sizes() -> None:
    shrink = partial(bilinear_resize, scale_height=0.29, scale_width=0.7)
    compiled = torch.compile(shrink, backend="eager", dynamic=True)
    for size in (100, 200, 90):
        x = torch.ones(1, 1, size, 50)
        assert compiled(x).shape == shrink(x).shape


@pytest.mark.skipif(not hasattr(torch.export.Dim, "AUTO"), reason="torch fixes sizes before 2.6")
def test_a_program_takes_any_number_of_regions() -> None:
    align = S.contrib.ROIAlign(S.var("x"), S.var("y"), pooled_size=(2, 2), spatial_scale=1, sample_ratio=2)
    module = translate(align.tojson(), ["x", "y"], {})
    maps, rois = (torch.rand(3, 2, 4, 4), torch.tensor([[i, 0, 0, 3.0, 3] for i in range(3)]))
    open_axes = dict.fromkeys("xy", {0: torch.export.Dim.AUTO})
    made = torch.export.export(module, (maps[:2], rois[:2]), dynamic_shapes=open_axes, strict=False)
    assert torch.equal(made.module()(maps, rois)[0], module(maps, rois)[0])


@pytest.mark.parametrize("shape", [(4,), (5, 3), (5, 2)])
def test_pick_takes_an_index_for_each_row(shape: tuple[int, ...]) -> None:
    with pytest.raises(mx.MXNetError):
        mx.nd.pick(mx.nd.ones((5, 3)), mx.nd.zeros(shape)).wait_to_read()
    with pytest.raises(ValueError, match=rf"one index for each row along axis -1, .*{re.escape(str(shape))}"):
        pick(torch.ones(5, 3), torch.zeros(shape))


def test_what_mxnet_does_not_compute() -> None:
    """A region of no sample is 0, and a dense layer takes no rows."""
    maps, rois = torch.ones(1, 2, 4, 4), torch.tensor([[-1.0, 0, 0, 3, 3], [0, 0, 0, 3, 3]])
    found = roi_align(maps, rois, pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=1)
    assert (found[0] == 0).all() and (found[1] == 1).all()
    assert fully_connected(torch.zeros(0, 3, 4), torch.ones(5, 12), num_hidden=5).shape == (0, 5)
