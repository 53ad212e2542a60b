"""The errors that multifit raises, and the problems that they report.

Checks never raise: they return problems. Their caller collects the problems and raises once, so that users
can fix everything in one go.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .text import counted, limited


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    kind : {"spec", "data", "trainer"}
        What it is about: the TaskSpec, the batches or the trainers.
    message : str
        What was declared, what was found, what is valid and how to fix it.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


class _Placed(Exception):
    """An error that may say where in the run it happened."""

    def at(self, place: str) -> None:
        """Put the place in the run, such as ``epoch 3, batch 8``, in front of the message."""
        self.args = (f"{place}: {self}",)


class _ProblemsError(_Placed, ValueError):
    """A ValueError with a numbered line for each problem; a string is one problem of its own kind."""

    kind = "spec"

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem(self.kind, problems)]
        self.problems: tuple[Problem, ...] = tuple(problems)
        lines = limited([f"{i}. {problem.message}" for i, problem in enumerate(self.problems, 1)])
        super().__init__("\n  ".join([f"{counted(len(self.problems), 'problem')} found:", *lines]))

    def __reduce__(self) -> tuple[object, ...]:
        """Copy from the problems, not from the message, which would become a problem itself."""
        return type(self), (self.problems,), {**self.__dict__, "args": self.args}


class SpecError(_ProblemsError):
    """The TaskSpec contradicts itself, the net or the data. `problems` lists everything that is wrong."""

    kind = "spec"


class DataError(_ProblemsError):
    """The data is not as declared, or cannot be used. `problems` lists everything that is wrong."""

    kind = "data"


class TrainerError(_ProblemsError):
    """The trainers do not cover the parameters, or cannot be built. `problems` lists everything wrong."""

    kind = "trainer"


class HandlerError(_Placed, RuntimeError):
    """A handler's hook returned something that it must not return, or does what cannot work in this run."""


class PeerError(RuntimeError):
    """Another process of a distributed run has ended, cannot be reached, or did not answer in time."""


CLEAR = (DataError, HandlerError, PeerError, SpecError, TrainerError)  # errors that already say what is wrong
_CLASSES = {error.kind: error for error in (SpecError, DataError, TrainerError)}
NOTES_ARE_SHOWN = hasattr(BaseException, "add_note")  # by Python, below an exception's traceback
_RAISED_IN = "raised in "


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one error for all problems, equal ones reported once; return if there are none.

    The class is the first of SpecError, DataError and TrainerError that any problem is about.
    """
    different = list(dict.fromkeys(problems))
    for kind, error in _CLASSES.items():
        if any(problem.kind == kind for problem in different):
            raise error(different)


@contextmanager
def user_code(where: Callable[[], str]) -> Iterator[None]:
    """Note on an exception what was called, such as ``losses["digit"]``, and raise it as it is.

    Errors that multifit itself raises, because that code returned something wrong, already say so.
    """
    try:
        yield
    except Exception as error:
        note_call(error, where())
        raise


def note_call(error: Exception, where: str) -> None:
    """Note on an exception what was called; see :func:`user_code`."""
    if not isinstance(error, CLEAR):
        _add_note(error, _RAISED_IN + where)


def note_place(error: Exception, place: str) -> None:
    """Say where in the run an error was raised: multifit's own say so in their message, others in a note."""
    if isinstance(error, _Placed):
        error.at(place)
        return
    last = notes(error)[-1:]
    if not last or not last[0].startswith(_RAISED_IN):
        _add_note(error, f"{_RAISED_IN}the run ({place})")
    elif place not in last[0]:
        vars(error)["__notes__"][-1] += f" ({place})"


def notes(error: BaseException) -> list[str]:
    """Return an exception's notes."""
    return list(getattr(error, "__notes__", ()))


def _add_note(error: Exception, note: str) -> None:
    # what add_note() does, which Python 3.10 lacks
    vars(error)["__notes__"] = [*notes(error), note]
