"""Generated cases, some of one change, and all that once failed: they end, and mistakes are named."""

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .cases import Case
from .corpus import CORPUS
from .every import every_case
from .properties import judge
from .strategies import KINDS
from .values import Named

SHARES = {"declarations": 40, "runs": 50}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", SHARES)
def test_generated_cases(kind: str) -> None:
    """The same ones each time."""

    @settings(
        max_examples=SHARES[kind], derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(KINDS[kind])
    def each(case: Case) -> None:
        judge(case)

    each()


def test_some_of_the_cases_of_one_change() -> None:
    for case in islice(every_case(), 0, None, 401):
        judge(case)


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_what_once_failed(case: Case) -> None:
    judge(case)


def test_a_property_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multifit.spec.parsing.is_finite_number", lambda number: 1 / 0)
    with pytest.raises(AssertionError, match="a raw ZeroDivisionError"):
        judge(Case("declare", (("label.classes", 3),)))
    judge(Case("declare", (("label.classes", Named("!1/2")),)))
