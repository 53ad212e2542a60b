"""300 generated cases, and all that once failed: ours or refused in our words. More run every night."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from .cases import Case
from .corpus import CORPUS
from .properties import judge
from .strategies import KINDS

SHARES = {"declarations": 120}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", SHARES)
def test_every_case_works_or_is_refused_in_our_words(kind: str) -> None:
    @settings(
        max_examples=SHARES[kind], derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS[kind])
    def search(case: Case) -> None:
        judge(case)

    search()


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_what_once_failed(case: Case) -> None:
    judge(case)


def test_a_property_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.spec.field_parser.is_name", bool)
    with pytest.raises(AssertionError, match="a raw"):
        test_every_case_works_or_is_refused_in_our_words("declarations")
