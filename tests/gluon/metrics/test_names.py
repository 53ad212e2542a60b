"""Names of metrics that are valid for nets of both libraries."""

from types import SimpleNamespace

import mxnet as mx
import pytest

from multifit import MetricSpec, SpecError
from multifit.gluon.metrics.host import as_metric
from multifit.spec.terms import MetricTerm


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("top_5", mx.metric.TopKAccuracy),
        ("top_2_accuracy", mx.metric.TopKAccuracy),
        ("top_1", mx.metric.Accuracy),
        ("cross_entropy", mx.metric.CrossEntropy),
        ("pearson", mx.metric.PearsonCorrelation),
    ],
)
def test_names(name: str, kind: type) -> None:
    metric = as_metric(MetricTerm("m", MetricSpec(name), ()))
    assert type(metric) is kind
    assert getattr(metric, "top_k", None) in (
        None,
        int(name[4:5]) if kind is mx.metric.TopKAccuracy else None,
    )


def test_an_object_for_pytorch_nets_is_refused() -> None:
    own = SimpleNamespace(update=None, reset=None, compute=None)
    with pytest.raises(
        SpecError, match=r'metrics\["m"\]: SimpleNamespace.* has no get\(\), as metrics of Gluon nets'
    ):
        as_metric(MetricTerm("m", MetricSpec(own), ()))
