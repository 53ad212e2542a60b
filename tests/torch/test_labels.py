"""Labels on torch: missing ones, and ones that are no class."""

import re
from typing import Any

import numpy as np
import pytest

from multifit import DataError, LabelSpec, LossSpec, MetricSpec, MultiEstimator, SpecError, TaskSpec
from multifit.gluon.compat import mx
from tests.common import language
from tests.common.data import in_batches, two_head_arrays
from tests.common.language import make_net, make_spec
from tests.common.specs import CE, L2, two_head_spec
from tests.torch.fits import assert_engines_agree
from tests.torch.runs import estimator_of


class Distance(mx.gluon.HybridBlock):
    """A loss with a value for each value of the label, or, with an `axis`, for each sample."""

    def __init__(self, **axis: Any) -> None:
        super().__init__()
        self.axis = axis
        self.hybridize()

    def hybrid_forward(self, F: Any, output: Any, label: Any) -> Any:
        distance = F.abs(output - label)
        return F.sum(distance, **self.axis) if self.axis else distance


def answers(*missing: tuple[int, int]) -> Any:
    """Batches of inputs, of three numbers each, which are missing at these places, and of one-hot labels."""
    arrays = two_head_arrays(40)
    numbers = np.random.RandomState(1).normal(size=(40, 3)).astype("float32")
    for place in missing:
        numbers[place] = np.nan
    one_hot = np.eye(3, dtype="float32")[arrays["digit"].astype(int)]
    return in_batches([arrays["image"], numbers, one_hot])


def of_answers(engine: str, loss: Any) -> MultiEstimator:
    spec = TaskSpec(
        inputs=["image"], outputs=["numbers", "size"],
        labels=[LabelSpec("numbers", missing="nan"), "one_hot"],
        losses={
            "l2": LossSpec(L2, "numbers", "numbers"),
            "own": LossSpec(loss, "numbers", "numbers"),
            "class": LossSpec(mx.gluon.loss.SoftmaxCELoss(sparse_label=False), "numbers", "one_hot"),
        },
        metrics={
            "mae": MetricSpec(mx.metric.MAE(), "numbers", "numbers"),
            "accuracy": MetricSpec(mx.metric.Accuracy(), "numbers", "one_hot"),
        },
        unused=["size"],
    )  # fmt: skip
    return estimator_of("hybridized", engine, spec=spec)


def test_single_values_that_are_missing_and_one_hot_labels() -> None:
    data = answers(*((sample, sample % 3) for sample in range(1, 40, 2)), (4, 0), (4, 1), (4, 2))

    def fit(engine: str) -> Any:
        estimator = of_answers(engine, Distance())
        return dict(estimator.fit(data, data, epochs=2, event_handlers=[])), estimator.values()

    assert_engines_agree(fit, 1e-5)


def test_a_part_of_a_label_is_missing_in_a_later_batch() -> None:
    found = '3 values of "numbers" are missing in samples that have others'
    estimator = of_answers("torch", Distance(axis=1))
    with pytest.raises(DataError, match=re.escape(f"{found} (in training)")):
        estimator.fit(answers((16, 0), (17, 1), (30, 2)), epochs=1, event_handlers=[])


def wrong_digits() -> Any:
    arrays = {name: array.copy() for name, array in two_head_arrays(40).items()}
    arrays["digit"][[25, 26, 35]] = 7
    return in_batches(arrays.values()), {}


def wrong_words() -> Any:
    """A label for each of several words, of which wrong ones are counted in the graph."""
    data = [(words, following.copy()) for words, following in language.BATCHES]
    for batch, word in ((3, 0), (3, 2), (4, 1)):
        data[batch][1][word, 1] = language.WORDS
    return data, {"batch_axis": 1}


LABELS: dict[str, tuple[Any, Any]] = {
    "one a sample": (estimator_of, wrong_digits),
    "several a sample": (lambda engine: MultiEstimator(make_net(), make_spec(), engine=engine), wrong_words),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_that_are_no_class_are_counted(name: str) -> None:
    make, wrong = LABELS[name]
    data, options = wrong()

    class Looks:
        def batch_end(self, estimator: Any) -> None:
            estimator._session.stages["train"].figures.state()

    messages = []
    for engine, handlers in (("mxnet", []), ("torch", []), ("torch", [Looks()])):
        with pytest.raises(DataError, match="in training, .* held 3 values not among") as caught:
            make(engine=engine).fit(data, epochs=1, event_handlers=handlers, **options)
        messages.append(str(caught.value).partition("not among")[0])
    assert len(set(messages)) == 1, messages


def test_a_normalizer_that_is_no_longer_one_in_a_later_batch() -> None:
    arrays = {name: array.copy() for name, array in two_head_arrays(40).items()}
    arrays["size"] = np.abs(arrays["size"])
    arrays["size"][16:24] *= -1
    data = in_batches(arrays.values())
    spec = two_head_spec(
        losses={"digit": LossSpec(CE, "digit", "digit", normalize_by=lambda s: s["size"] * 2), "size": L2}
    )
    estimator = estimator_of("hybridized", "torch", spec=spec)
    message = re.escape('losses["digit"]: normalize_by is ') + ".* whose sum is at least 0"
    with pytest.raises(SpecError, match=message):
        estimator.fit(data, epochs=1, event_handlers=[])
    assert estimator.state.step == 2
