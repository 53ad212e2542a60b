"""Search for wrong arguments or data that move a parameter, hang, or are declared and not named as wrong.

The cases are 50,000 generated ones, and all those with a single change; see tests/fuzz. ``pytest
nightly/test_fuzz.py -n 2 --fuzz-seed 7 --fuzz-examples 2000`` repeats or shortens a search. Add a case that
fails to tests/fuzz/corpus.py.
"""

from itertools import islice

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.cases import Case
from tests.fuzz.every import every_case
from tests.fuzz.properties import judge
from tests.fuzz.strategies import KINDS

CHUNKS = 10  # of each kind, which several processes share


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("kind", KINDS)
def test_generated_cases(kind, chunk, pytestconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = pytestconfig.getoption("fuzz_examples") // (CHUNKS * len(KINDS))

    @seed(pytestconfig.getoption("fuzz_seed") * CHUNKS + chunk)
    @settings(
        max_examples=max(examples, 1),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],  # not `explain`, which traces a failure and takes long
    )
    @given(KINDS[kind])
    def search(case: Case) -> None:
        judge(case)

    search()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cases_of_one_change(chunk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = []
    for case in islice(every_case(), chunk, None, CHUNKS):
        try:
            judge(case)
        except AssertionError as error:
            problems.append(ascii(str(error)[:500]))
    assert not problems, "\n".join(problems)
