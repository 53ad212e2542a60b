"""Whatever is shown, the page's structure stays."""

from __future__ import annotations

import pytest

from multifit.report.markup import Markup, join, tag


def test_elements() -> None:
    assert tag("p", "a", tag("b", 1), None, class_="x", data_n=0.123456789, title=None) == (
        '<p class="x" data-n="0.12346">a<b>1</b></p>'
    )
    assert tag("img", src="a") == '<img src="a"/>'
    assert tag("circle", tag("title", "t"), r=1) == '<circle r="1"><title>t</title></circle>'
    assert tag("svg", viewBox="0 0 1 1", element="name") == '<svg viewBox="0 0 1 1" element="name"></svg>'
    assert isinstance(join("a", None, Markup("<i>")), Markup)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '" onload="x', "'", "a & b", "</p>"])
def test_text_and_attributes_are_escaped(text: str) -> None:
    import xml.etree.ElementTree as xml

    element = xml.fromstring(tag("p", text, title=text))
    assert (element.text, element.get("title"), len(element)) == (text, text, 0)
