"""The errors that multifit raises, the problems that they report, and the words they have in common.

Checks never raise: they return problems. Their caller collects the problems and raises once, so that users
can fix everything in one go.
"""

import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

MAX_SHOWN = 50  # problems of an error, and names in a list; more would hide what is wrong


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


def suggest(name: object, valid: Iterable[object]) -> str:
    """Return ``' (did you mean "x"?)'`` for the nearest valid name, or ``''`` if none is near."""
    near = nearest(name, valid)
    return f' (did you mean "{near}"?)' if near else ""


def nearest(name: object, valid: Iterable[object], cutoff: float = 0.6) -> str | None:
    """Return the valid name that is most like `name`; None if none is near or `name` itself is valid.

    `cutoff` says how much two names must be alike, from 0 to 1, as `difflib` measures it.
    """
    if not isinstance(name, str) or len(name) > 200:  # the comparison takes quadratic time
        return None
    candidates = [candidate for candidate in valid if isinstance(candidate, str)]
    if name in candidates:
        return None
    # two letters in another order are two errors to difflib: it finds "adamax" nearer to "adma" than "adam"
    swapped = {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    matches = [each for each in candidates if each in swapped or each.casefold() == name.casefold()]
    matches = matches or difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def quoted(valid: Iterable[object]) -> str:
    """Return the names quoted and separated by commas, or ``none``; of many only the first."""
    names = (name if isinstance(name, str) and len(name) <= 200 else shown(name) for name in valid)
    return ", ".join(limited([f'"{name}"' for name in names])) or "none"


def limited(lines: Sequence[str], most: int = MAX_SHOWN) -> list[str]:
    """Return the lines; of many only the first, and how many more there are."""
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return [*lines[:most], *more]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 array``, ``2 arrays``; the plural ends in s unless it is given."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def memory(size: float) -> str:
    """Return a number of bytes as ``12 bytes``, ``1.5 kB`` or ``20 MB``."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def last_line(error: BaseException) -> str:
    """Return the last line of an exception's message, or ``no message``.

    MXNet's messages are whole stack traces, which end with what is wrong; for a wrong argument of an operator
    another line follows, which says what the argument is for.
    """
    lines = str(error).strip().splitlines() or ["no message"]
    line = next((each for each in reversed(lines) if "MXNetError: " in each), lines[-1])
    return line.removeprefix(f"{type(error).__name__}: ")


def reason(error: BaseException) -> str:
    """Return an error's message; for an OSError without the path, which the surrounding message names."""
    return getattr(error, "strerror", None) or str(error)


def shown(value: object) -> str:
    """Return the value's `repr` in one line of at most 80 characters, however large or deep the value."""
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= 80 else text[:79] + "…"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 8
_SHORT.maxtuple = _SHORT.maxlist = _SHORT.maxarray = _SHORT.maxdict = 40
_SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdeque = 40
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 400
