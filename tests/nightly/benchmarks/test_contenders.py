"""All contenders train the same way: after an epoch their figures are equal."""

import pytest

from nightly.benchmarks.subjects import HEADS, NMT, SINGLES, SSD

CASES = {str(case): case for case in (*HEADS, *SINGLES, SSD, NMT)}


def figures(history: object) -> list[float]:
    """Return what multifit measured, losses first: an epoch's figures in the order of the spec."""
    return [values[-1] for name, values in history.items() if name not in ("train_loss", "lr")]


@pytest.mark.parametrize("name", ["2 heads, adam", "4 heads", "MLP"])
def test_epochs_of_several_batches(name):
    case = CASES[name]
    batches = case.batches()[:4]
    ours = figures(case.estimator().fit(batches, epochs=2))
    for other, epoch in case.others().items():
        epoch(batches)
        assert epoch(batches) == pytest.approx(ours, rel=1e-4), other


def test_a_batch_of_maps():
    case = CASES["tiny FCN, mean IoU, 2 devices"]
    batches = case.batches()[:2]
    loss, _, mean_iou = figures(case.estimator().fit(batches, epochs=1))
    for other, epoch in case.others().items():
        assert epoch(batches) == pytest.approx([loss, mean_iou], rel=1e-3), other


def test_two_batches_of_sentences():
    """The hand-written loop returns the mean of the batches' means, which is equal for equal lengths."""
    batches = NMT.batches()[:1] * 2
    loss, *_ = figures(NMT.estimator().fit(batches, epochs=1))
    assert NMT.hand_written()(batches) == pytest.approx([loss], rel=1e-4)


def test_two_batches_of_boxes():
    """The hand-written loop returns the mean of the batches' means, which is equal for equally many boxes."""
    batches = SSD.batches()[:1] * 2
    found = SSD.estimator().fit(batches, epochs=1)
    ours = [found["train_multibox.cls"][0], found["train_multibox.box"][0]]
    # gluoncv's script scales with the batch's size, and its metric divides by the elements
    assert SSD.hand_written()(batches) == pytest.approx(ours, rel=1e-3)
