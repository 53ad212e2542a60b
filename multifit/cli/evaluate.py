"""``multifit evaluate FILE --from DIR``: the figures of a trained net on the validation data."""

from __future__ import annotations

import argparse

from ..tables import table
from ..taskfile import UsageError
from .arguments import add_trained_arguments, quiet
from .outputs import print_result
from .task import restore_losses, trained_run

add_arguments = add_trained_arguments


def run(options: argparse.Namespace) -> None:
    """Load the trained parameters, evaluate the net and print the figures."""
    folder = options.folder.absolute()  # the task file may change the working directory
    with quiet(options.quiet):
        task = trained_run(options)
        estimator, (_, val_data) = task.estimator, task.data  # in the order of `train`, for older runs
        if val_data is None:
            raise UsageError(
                f"{task.file.path} has no validation data: data() must return (train_data, val_data)"
            )
        restore_losses(folder, estimator)
        figures = estimator.evaluate(val_data, event_handlers=[] if options.quiet else None)
    print_result(table((), ([name, f"{value:.6g}"] for name, value in figures.items())))
