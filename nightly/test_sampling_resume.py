"""Runs with a loader for each task resume bit for bit, with each kind of loader and each way of sampling."""

from pathlib import Path

import pytest

from tests.sampling.test_resume import assert_resumes


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("data", "way", "steps"),
    [
        ("loaders", "proportional", [4]),
        ("loaders", "proportional", [14]),
        ("lists", "round robin", [8]),
        ("loaders with rollover", "proportional", [17]),
        ("loaders that augment", "ratios", [7]),
        ("loaders with workers", "round robin", [13]),
        ("loaders that iterate in their own way", "proportional", [5, 14]),
        ("noisy", "ratios", [10]),
    ],
)
def test_a_resumed_run_ends_bit_for_bit(tmp_path: Path, data: str, way: str, steps: list[int]) -> None:
    assert_resumes(tmp_path, data, way, steps)
