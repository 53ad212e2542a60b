"""Every method of balancing, as its constructor makes it: a new one is part of the tests by itself."""

from typing import Any

from multifit import balance
from multifit.balance import GramianMethod, LossMethod


def methods() -> dict[str, Any]:
    """Return an instance of every class of a method, by its name."""
    exported = [getattr(balance, name) for name in balance.__all__]
    classes = [each for each in exported if isinstance(each, type) and issubclass(each, LossMethod)]
    return {each.__name__: each() for each in classes if each not in (LossMethod, GramianMethod)}
