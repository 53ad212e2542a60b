"""``multifit evaluate FILE --from DIR``: the figures of a trained net on the validation data."""

import argparse

from ..utils.tables import table
from .common import add_trained_arguments, print_result, quiet
from .task import trained_run
from .taskfile import UsageError

add_arguments = add_trained_arguments


def run(options: argparse.Namespace) -> None:
    """Load the trained parameters, evaluate the net and print the figures."""
    with quiet(options.quiet):
        task = trained_run(options)
        estimator, (_, val_data) = task.estimator, task.data
        if val_data is None:
            raise UsageError(
                f"{task.file.path} has no validation data: data() must return (train_data, val_data)"
            )
        figures = estimator.evaluate(val_data, event_handlers=[] if options.quiet else None)
    print_result(table((), ([name, f"{value:.6g}"] for name, value in figures.items())))
