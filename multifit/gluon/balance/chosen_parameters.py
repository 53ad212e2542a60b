"""Choose the parameters whose gradients are compared."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping

from ...distributed import World
from ...errors import SpecError, suggest


class ChosenParameters:
    """The names of the parameters that match `pattern`, or of all parameters if it is None.

    Raises SpecError if a pattern matches none.
    """

    def __init__(self, pattern: str | None, parameters: Mapping[str, Any], world: World) -> None:
        self._pattern, self._world = pattern, world
        self._names = set(parameters) if pattern is None else _matching(pattern, parameters)

    def reached(self, own: Iterable[str]) -> list[str]:
        """Return the chosen names among the parameters that the samples of any rank have reached.

        `own` are the names reached on this rank. Raises SpecError if no chosen parameter was reached: they
        all belong to single tasks, or are frozen.
        """
        every = self._world.gather(sorted(own))
        names = sorted(self._names & set().union(*every))
        if not names:
            raise SpecError(
                f'balance: on="{self._pattern}" selects no parameter that tasks share and train; '
                'use on="parameters"'
            )
        return names


def _matching(pattern: str, parameters: Mapping[str, Any]) -> set[str]:
    """Return the names that a pattern matches; raises SpecError if it is not valid, or matches none."""
    try:
        names = {name for name in parameters if re.fullmatch(pattern, name)}
    except re.error as error:
        raise SpecError(f'balance: on="{pattern}" is not a regular expression: {error}') from None
    if not names:
        near = suggest(pattern, [*parameters, "features", "parameters"])
        raise SpecError(
            f'balance: on="{pattern}" matches no parameter{near}; valid are "features", "parameters" or a '
            "pattern of parameters such as body.*"
        )
    return names
