"""Operators of detection, in MXNet and translated. Only `box_nms` has a gradient with respect to boxes."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multifit.gluon.compat import mx
from multifit.torch.from_gluon.operators.detection import roi_align
from multifit.torch.from_gluon.translate import translate
from tests.torch.from_gluon.agreement import assert_agree, normal

S = mx.sym
few = settings(max_examples=15, deadline=None, derandomize=True)


def boxes(*shape, seed=0):
    """Return boxes by their corners."""
    random = np.random.RandomState(seed)
    low = random.rand(*shape, 2)
    return np.concatenate([low, low + 0.5 * random.rand(*shape, 2)], -1)


def detections(count, seed):
    """Return rows of class, score and box."""
    random = np.random.RandomState(seed)
    classes = random.randint(0, 3, (2, count, 1))
    scores = random.permutation(2 * count).reshape(2, count, 1) / (2 * count)
    return np.concatenate([classes, scores, boxes(2, count, seed=seed)], -1)


def test_overlaps():
    for form in ("corner", "center"):
        iou = partial(S.contrib.box_iou, format=form)
        assert_agree(iou, boxes(2, 3), boxes(4, seed=1))
        assert_agree(iou, boxes(3) * 0, boxes(3))


@few
@given(
    seed=st.integers(0, 99),
    overlap=st.sampled_from([0.1, 0.3, 0.5]),
    valid=st.sampled_from([0.0, 0.3]),
    topk=st.sampled_from([-1, 5, 100]),
    force=st.booleans(),
    ids=st.sampled_from([(-1, -1), (0, -1), (0, 0)]),
)
def test_non_maximum_suppression(seed, overlap, valid, topk, force, ids):
    options = {"overlap_thresh": overlap, "valid_thresh": valid, "topk": topk, "force_suppress": force}
    options.update(id_index=ids[0], background_id=ids[1])
    assert_agree(partial(S.contrib.box_nms, **options), detections(12, seed))


def test_a_chain_of_suppressions():
    rows = [[0, 1 - i / 10, i, 0, i + 3, 1] for i in range(8)]
    assert_agree(partial(S.contrib.box_nms, overlap_thresh=0.4), np.array(rows))


def test_offsets_of_boxes():
    offsets = normal(2, 5, 4) * 0.3
    stds = {"std0": 0.125, "std1": 0.25, "std2": 0.5, "std3": 0.5}
    for form in ("corner", "center"):
        for clip in (-1.0, 0.125):
            decode = partial(S.contrib.box_decode, format=form, clip=clip, **stds)
            assert_agree(decode, offsets, boxes(1, 5), constant=(0, 1))


@few
@given(seed=st.integers(0, 99), samples=st.sampled_from([1, 2, 3, 5]), aligned=st.booleans())
def test_regions(seed, samples, aligned):
    random = np.random.RandomState(seed)
    index, low = random.randint(0, 2, (5, 1)), random.rand(5, 2) * 8
    inside = np.concatenate([index, low, low + random.rand(5, 2) * 6], 1)
    options = {"pooled_size": (3, 2), "spatial_scale": 0.5, "sample_ratio": samples, "aligned": aligned}
    align, maps = partial(S.contrib.ROIAlign, **options), normal(2, 3, 8, 9)
    assert_agree(align, maps, inside, constant=(1,))
    outside = np.concatenate([index, low * 3 - 3, low * 3 + 9 * random.rand(5, 2)], 1)
    assert_agree(align, maps, outside, constant=(0, 1))  # MXNet's gradient writes where it must not


@pytest.mark.skipif(not hasattr(torch.export.Dim, "AUTO"), reason="torch fixes sizes before 2.6")
def test_a_program_takes_any_number_of_regions():
    align = S.contrib.ROIAlign(S.var("x"), S.var("y"), pooled_size=(2, 2), spatial_scale=1, sample_ratio=2)
    module = translate(align.tojson(), ["x", "y"], {})
    maps, rois = (torch.rand(3, 2, 4, 4), torch.tensor([[i, 0, 0, 3.0, 3] for i in range(3)]))
    open_axes = dict.fromkeys("xy", {0: torch.export.Dim.AUTO})
    made = torch.export.export(module, (maps[:2], rois[:2]), dynamic_shapes=open_axes, strict=False)
    assert torch.equal(made.module()(maps, rois)[0], module(maps, rois)[0])


def test_a_region_of_no_sample_is_0():
    maps, rois = torch.ones(1, 2, 4, 4), torch.tensor([[-1.0, 0, 0, 3, 3], [0, 0, 0, 3, 3]])
    found = roi_align(maps, rois, pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=1)
    assert (found[0] == 0).all() and (found[1] == 1).all()
