"""Add parameters to a trainer that has already made steps."""

from __future__ import annotations

from typing import Any, Sequence

from ..compat import mx


def set_parameters(trainer: mx.gluon.Trainer, parameters: Sequence[mx.gluon.Parameter]) -> None:
    """Give a trainer `parameters`, as if it had been built with them: those it has already, and new ones.

    Parameters that it has already keep their states and counts. A trainer counts updates in the order of its
    parameters, and a schedule's rate depends on the counts so far: so this order must not depend on when a
    parameter was added. The trainer must not update on its kvstore, which is reset.
    """
    numbers = {parameter: number for number, parameter in enumerate(parameters)}
    before = [numbers[parameter] for parameter in trainer._params]
    optimizer = trainer._optimizer
    by_number: list[dict[int, Any]] = [*optimizer._all_index_update_counts.values()]
    for updater in trainer._updaters:
        by_number += [updater.states, updater.states_synced]
    for values in by_number:
        renumbered = {before[number]: value for number, value in values.items()}
        values.clear()
        values.update(renumbered)
    trainer._params = list(parameters)
    trainer._param2idx = {parameter.name: number for parameter, number in numbers.items()}
    optimizer.param_dict = dict(enumerate(parameters))
    for parameter in parameters:
        parameter._set_trainer(trainer)
    trainer._reset_kvstore()
