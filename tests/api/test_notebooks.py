"""How plan, history and estimator show themselves in a notebook."""

import base64
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from multifit import History, LossSpec, MultiEstimator
from tests.common.hand_loop import SILENT
from tests.common.nets import two_heads
from tests.common.specs import CE, L2, two_head_spec


def texts(html: str) -> list[str]:
    """Return the texts of HTML, which must be well-formed but for its images."""
    tree = ElementTree.fromstring(f"<div>{re.sub('<img [^>]*>', '', html)}</div>")
    return [text.strip() for text in tree.itertext() if text.strip()]


def test_an_estimator_shows_its_spec_then_its_plan_then_its_figures(batches, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # curves take long
    losses = {"<b>": LossSpec(CE, "digit", "digit"), "size": L2}
    spec = two_head_spec(losses=losses, metrics=None)
    estimator = MultiEstimator(two_heads(), spec, frozen=["size.*"])
    shown = texts(estimator._repr_html_())
    assert shown[0] == repr(estimator) and "loss  <b>   1 x Softmax" in shown[1]
    plan = estimator.check(batches, batches, layers=True)
    shown = texts(plan._repr_html_())
    parts = "training, evaluating and predicting", "parameters", "frozen", "layers"
    for text in (*parts, "image", "<b>", "body.act", "in all"):
        assert text in shown, text
    assert any(text.startswith("note: default trainer") for text in shown)
    assert "layers" not in texts(replace(plan, layers=())._repr_html_())
    assert texts(estimator._repr_html_()) == [repr(estimator), *shown]
    history = estimator.fit(batches, batches, epochs=1, event_handlers=SILENT)
    html = estimator._repr_html_()
    assert html.endswith(history._repr_html_()) and html.count("&lt;b&gt;") > 3 and "<b>" not in html


def test_a_history_has_the_last_epoch_and_its_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History({"train_loss": [2.0, 1.0], "val_<i>": [0.5, 0.25], "lr": [0.1, 0.1]})
    html = history._repr_html_()
    shown = texts(html)
    assert shown[0] == "after epoch 2" and {"<i>", "0.2500", "1.0000"} <= {*shown}
    (data,) = re.findall('<img src="data:image/svg\\+xml;base64,([^"]*)">', html)
    assert base64.b64decode(data).startswith(b"<?xml") and b"svg" in base64.b64decode(data)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert texts(history._repr_html_()) == shown and "<img" not in history._repr_html_()
    assert texts(History()._repr_html_())[0] == "after epoch 0"
