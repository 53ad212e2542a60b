"""Losses that are bound to trainers: the parameters that they train, and checks of the trainers' names."""

from __future__ import annotations

from typing import Iterator, Sequence

from ...errors import Problem, quoted, suggest
from ...spec.terms import Term
from ..optim.gradients import updated_parameters
from ..optim.trainers import Trainers
from .model_trainers import ModelTrainers


def bound_parameters(terms: Sequence[Term], trainers: ModelTrainers) -> dict[str, frozenset[str]]:
    """Return, for each loss that is bound to trainers, the names of the parameters that it trains."""
    parameters = {name: updated_parameters(trainer) for name, trainer in trainers.get().items()}
    return {
        term.key: frozenset(parameter.name for name in term.trainers for parameter in parameters[name])
        for term in terms
        if term.trainers
    }


def bound_problems(terms: Sequence[Term], trainers: Trainers) -> list[Problem]:
    """Return the names of trainers that do not exist, and the trainers without a loss."""
    return [Problem("spec", message) for message in _messages(terms, trainers)]


def _messages(terms: Sequence[Term], trainers: Trainers) -> Iterator[str]:
    for term in terms:
        for name in term.trainers:
            if name not in trainers:
                near = suggest(name, trainers)
                found = f"there is no trainer {quoted([name])}{near}"
                yield f"{term.where}: {found}; valid are {quoted(trainers)}"
    bound = {name for term in terms for name in term.trainers}
    if not bound or not bound <= trainers.keys() or not all(term.trainers for term in terms):
        return
    for name in trainers:
        if name not in bound:
            yield (
                f'trainers["{name}"]: no loss trains its parameters, as all are bound to other trainers; '
                "name it in the trainers= of a loss, or list its parameters in frozen="
            )
