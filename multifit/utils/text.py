"""Words of messages: names that are near, lists of names, numbers with their nouns, values in one line."""

import difflib
import reprlib
from collections.abc import Iterable, Sequence

MAX_SHOWN = 50  # problems of an error, and names in a list; more would hide what is wrong


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
