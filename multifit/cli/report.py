"""``multifit report RUN…``: one HTML page on one run, or on several side by side."""

import argparse
from pathlib import Path

from ..utils.files import atomic_write
from .html_page import page
from .runs import read_run
from .taskfile import UsageError, as_usage_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument(
        "folders", metavar="RUN", nargs="+", type=Path, help="folder of a run, such as runs/digits"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html"
    )


def run(options: argparse.Namespace) -> None:
    """Read the runs, write the page, and print what the runs lack."""
    with as_usage_error(ValueError):
        runs = [read_run(folder) for folder in dict.fromkeys(options.folders)]
    if options.output.is_file() and options.output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{options.output} exists, and is not an HTML page; give another --output")
    atomic_write(options.output, page(runs))
    for each in runs:
        for missing in each.missing:
            print(f"{each.name}: {missing}")
    print(f"wrote {options.output}")
