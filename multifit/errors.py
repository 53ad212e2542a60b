"""The errors that multifit raises, and the problems that they report.

A check never raises: it returns its problems. Who asked for the checks collects them and raises once,
so that a user mends everything in one go.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Iterable, Sequence

__all__ = ["DataError", "Problem", "SpecError", "TrainerError", "UserCodeError", "raise_problems", "suggest"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    kind : {"spec", "data", "trainer"}
        Which declaration it is about: the TaskSpec, the batches or the trainers.
    message : str
        What was declared, what was found, what is valid and how to mend it.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


class _ProblemsError(ValueError):
    """A ValueError that carries the problems it reports as data, in `problems`."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem(self.kind, problems)]
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(_numbered(self.problems))

    kind = "spec"


class SpecError(_ProblemsError):
    """The TaskSpec does not fit itself, the net or the data. `problems` lists everything that was found."""

    kind = "spec"


class DataError(_ProblemsError):
    """The data cannot be used as declared. `problems` lists everything that was found."""

    kind = "data"


class TrainerError(_ProblemsError):
    """The trainers do not cover the parameters, or cannot be built. `problems` lists everything found."""

    kind = "trainer"


class UserCodeError(RuntimeError):
    """The user's own net, loss, metric or handler raised; the original exception is the `__cause__`.

    The message says where the run was, in one line.
    """

    def at(self, place: str) -> None:
        """Put in front of the message where in the run it was, such as ``epoch 3, batch 8``."""
        self.args = (f"{place}: {self}",)


_CLASSES = {error.kind: error for error in (SpecError, DataError, TrainerError)}


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one error for all `problems`, or return if there are none.

    Raises
    ------
    SpecError, DataError, TrainerError
        The first of these, in this order, of which there is a problem.
    """
    found = list(dict.fromkeys(problems))
    for kind, error in _CLASSES.items():
        if any(problem.kind == kind for problem in found):
            raise error(found)


def suggest(name: object, valid: Iterable[object]) -> str:
    """Return ``' (did you mean "x"?)'`` for the nearest valid name, or ``''`` where none is near."""
    near = nearest(name, valid)
    return f' (did you mean "{near}"?)' if near else ""


def nearest(name: object, valid: Iterable[object]) -> str | None:
    """Return the valid name that is most like `name`; None where none is near, or `name` itself is valid."""
    known = [one for one in valid if isinstance(one, str)]
    found = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    return found[0] if found and found[0] != name else None


def names(valid: Iterable[object]) -> str:
    """Return the names quoted and separated by commas, or ``none``."""
    return ", ".join(f'"{name}"' for name in valid) or "none"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 array``, ``2 arrays``; the plural has an s where none is given."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def last_line(error: BaseException) -> str:
    """Return the last line of an exception's message, ``no message`` where it has none.

    MXNet's messages are whole stack traces, whose last line says what was wrong.
    """
    line = (str(error).strip().splitlines() or ["no message"])[-1]
    return line.removeprefix(f"{type(error).__name__}: ")


def shown(value: object) -> str:
    """Return what somebody gave, in one line that is not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object that cannot even show itself must not hide what is wrong with it
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


def _numbered(problems: Sequence[Problem]) -> str:
    head = "1 problem found:" if len(problems) == 1 else f"{len(problems)} problems found:"
    return "\n".join([head, *(f"  {i}. {problem.message}" for i, problem in enumerate(problems, 1))])
