"""What all tests share: one thread, a fixed seed, multifit before mxnet (Python 3.12 needs that)."""

import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from textwrap import fill

# Two test processes with OpenMP's default of one thread per core each would slow each other many times over.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# matplotlib must not look for a screen.
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402

from multifit.utils import threads  # noqa: E402
from multifit.utils.seeding import seed_everything  # noqa: E402


def pytest_collection_finish() -> None:
    """Leave the modules and the tests out of garbage collections, which each DataLoader of Gluon runs."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that compute in bfloat16 where the CPU cannot."""
    if item.get_closest_marker("bfloat16"):
        from multifit.gluon.graph import lower as precision  # not above: mxnet may not be installed

        if not precision.cpu_supports_bfloat16():
            pytest.skip("this CPU has no AVX512, which bfloat16 needs")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ran, by folder, unless it was a single one."""
    counts, seconds = defaultdict(int), defaultdict(float)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            folder = (report.nodeid.split("::")[0].split("/")[1:-1] or ["tests"])[0]
            counts[folder] += report.when == "call"
            seconds[folder] += report.duration
    if len(counts) > 1:
        terminalreporter.section("tests by folder")
        each = [f"{folder}: {counts[folder]} in {seconds[folder]:.0f} s" for folder in sorted(counts)]
        terminalreporter.write_line(fill("; ".join(each), 110))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same random state, so that it does not depend on the others."""
    seed_everything(0)


@pytest.fixture(autouse=True, scope="session")
def no_fsync() -> Iterator[None]:
    """Do not wait for the disk: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def with_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """``with_threads(2)``: multifit believes from here on that MXNet has so many threads."""

    def believe(count: int) -> None:
        monkeypatch.setenv(threads.VARIABLES[0], str(count))
        threads.omp_threads.cache_clear()

    yield believe
    monkeypatch.undo()
    threads.omp_threads.cache_clear()


@pytest.fixture
def float16_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register "float16", a lower precision that every CPU can compute: MXNet's activations in float16."""
    from multifit.gluon.graph import lower as precision

    rules = precision.Rules(low=("Activation",), either=("Pooling",))
    monkeypatch.setitem(precision.LOWER, "float16", lambda: rules)
    monkeypatch.setattr(precision, "cpu_supports_bfloat16", lambda: True)
