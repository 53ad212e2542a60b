"""The command: ``python -m nightly.benchmarks [TABLE …] [--case NAME …] [--epochs N]``."""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from multifit.utils.tables import table
from multifit.utils.text import quoted, suggest

from . import balance, distributed, engines, others
from .results import Row, machine, verdicts, write
from .steps import heads, step_time

__all__ = ["TABLES", "main"]

TABLES = {each.NAME: each for each in (step_time, heads, others, balance, distributed, engines)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the tables, print each when it is ready, and write the results.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line; default: that of this process.
    """
    options = _parser().parse_args(arguments)
    started, facts, rows = time.strftime("%Y-%m-%dT%H-%M-%S"), machine(), []
    for name in options.tables or TABLES:
        if not TABLES[name].CASES:
            print(f"{name}: left out, as it needs PyTorch: make bench ONLY={name}", flush=True)
        measured = list(_measured(TABLES[name], options.cases, options.epochs))
        rows += measured
        if measured:
            print(shown(measured), flush=True)
        path = write(Path(options.output), started, facts, rows)
    print(f"written to {path} and {path.with_suffix('.json').name}")
    return 0


def shown(rows: Sequence[Row]) -> str:
    """Return rows as text, one line per figure: median, quartiles, and whether its target was met."""
    by_figure = {verdict.target[:3]: verdict for verdict in verdicts(rows)}
    lines = []
    for row in rows:
        for figure, spread in row.figures().items():
            verdict = by_figure.get((row.table, row.case, figure))
            met = (
                f"{'met' if verdict.met else 'NOT MET'}, at most {verdict.target.limit:g}" if verdict else ""
            )
            unit = "ratio" if figure.startswith("/ ") else row.unit
            cells = (f"{spread.median:.3f}", f"({spread.low:.3f} … {spread.high:.3f})", unit, met)
            lines.append((row.case, figure, *cells))
    headers = (rows[0].table if rows else "", "", "median", "(quartiles)", "", "target")
    return f"\n{table(headers, lines)}\n"


def _measured(module: Any, begins: Sequence[str], epochs: int | None) -> Iterator[Row]:
    rows: list[Row] = []
    for case in module.CASES:
        if not begins or str(case).lower().startswith(tuple(map(str.lower, begins))):
            rows += module.measure(case, epochs)
            print(f"{module.NAME}: {case} done", flush=True)
    yield from rows
    yield from getattr(module, "summed_up", lambda rows: ())(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure multifit beside other ways to train.")
    parser.add_argument("tables", nargs="*", type=_table, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--case", dest="cases", nargs="+", default=[], help="cases whose name begins so")
    parser.add_argument(
        "--epochs", type=_positive, help="rounds of each contender; by default as many as it takes"
    )
    parser.add_argument("--output", default="runs/benchmarks", help="the folder of the results")
    return parser


def _table(name: str) -> str:
    if name not in TABLES:
        raise argparse.ArgumentTypeError(
            f"there is no table {name}{suggest(name, TABLES)}; there are {quoted(TABLES)}"
        )
    return name


def _positive(text: str) -> int:
    if not (number := int(text)) > 0:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number
