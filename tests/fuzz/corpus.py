"""Cases that once ended in a raw error, a wrong name or a hang."""

from __future__ import annotations

from .cases import Case
from .values import Named


def one(what: str, place: str, value: object) -> Case:
    return Case(what, ((place, value),))


def named(what: str, place: str, *values: str) -> list[Case]:
    """Return a case for each of some values by name."""
    return [one(what, place, Named(value)) for value in values]


CORPUS = [
    *named("declare", "task.outputs", "loop", "double loop", "nested 40", "nested 5000", "dict loop"),
    *named("declare", "task.unused", "loop", "nested 5000", "surrogate", "lines"),
    *named("declare", "task.batch", "loop", "nested 5000", "300 names"),
    *named("declare", "loss.weight", "10**400", "10**5000", "1/2", "Decimal", "Decimal nan", "unprintable"),
    *named("declare", "label.classes", "10**400", "inf", "1/2", "0-d array"),
    *named("declare", "label.ignore", "nan", "10**400", "unprintable"),
    *named("declare", "label.dtype", "array", "object", "dict"),
    *named("declare", "metric.names", "unprintable", "loop", "300 names"),
    *named("declare", "metric.labels", "long text"), *named("declare", "loss.scope", "long text", "array"),
    one("declare", "loss.normalize_by", "labels.z"), one("declare", "metric.losses", "losses.p"),
    *named("TaskSpec.combine", "shared", "[[]]", "loop", "nested 5000", "array of names", "dict"),
    *named("TaskSpec.combine", "a", "unprintable", "class"),
]  # fmt: skip
