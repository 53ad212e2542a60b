"""Cases that once ended in a raw error, a wrong name or a hang."""

from .cases import Case
from .strategies import FIELDS
from .values import Named


def one(what: str, place: str, value: object) -> Case:
    return Case(what, ((place, value),))


def named(what: str, place: str, *values: str) -> list[Case]:
    """Return a case for each of some values by name."""
    return [one(what, place, Named(value)) for value in values]


CORPUS = [
    *named("declare", "task.outputs", "!loop", "!nested 5000"), *named("declare", "task.unused", "lines"),
    *named("declare", "task.batch", "300 names"), *named("declare", "label.classes", "inf"),
    *named("declare", "label.ignore", "nan"), *named("declare", "label.dtype", "array", "object", "dict"),
    *named("declare", "metric.names", "300 names"), one("declare", "metric.losses", "losses.p"),
    one("declare", "loss.normalize_by", "labels.z"),
    Case("declare", tuple((f"task.{field}", None) for field in FIELDS["task"])),
    *[one("fit", "net", kind) for kind in ("!none later", "!text later", "scalar", "detached")],
    *[one("evaluate", "net", kind) for kind in ("!none later", "tuple of three later")],
    *[one("fit", "batch.1", form) for form in ("!loop", "None", "pad 99")],
    *[one("evaluate", "batch.0", form) for form in ("DataBatches", "pad 99", "dict of int")],
    *[one("fit", "batch.1.y", array) for array in ("csr", "!loop", "3 rows", "None", "texts", "0-d")],
    *[one("check", "batch.0.x", array) for array in ("csr", "objects")],
    Case("check", (("label.missing", 0), ("batch.0.x", "0-d"))),
    *[one("fit", "loader", kind) for kind in ("class", "text")],
    *[one("evaluate", "evaluate.batch_axis", axis) for axis in (None, "x", -3, {}, 67)],
    *[one("fit", "fit.resume", value) for value in (3, {}, b"x")],
    *named("fit", "fit.event_handlers", "class", "[[]]"), one("fit", "trainer.clip_norm", 5e-324),
    *named("fit", "trainer.clip_norm", "!10**400", "!1/2", "nan"),
    *named("fit", "loss.fn", "!None later", "scalar later", "rows later"),
    *named("check", "loss.fn", "CE of axis 5"), *named("check", "metric.metric", "Accuracy of axis 7"),
    *named("check", "task.forward", "no arguments"), *named("fit", "task.batch_fn", "class"),
    Case("check", (("loader", "DataLoader"), ("batch.0.x", "16 rows"))),
    Case("check", (("batch.0", "DataBatches"), ("batch.0.x", "lists"))),
    *[Case("check", (("batch.0", "pad 3"), ("batch.0.x", array))) for array in ("None", "0-d")],
    *[Case("check", (("batch.0", "DataBatches"), ("batch.0.y", array))) for array in ("lists", "number")],
    *named("fit", "loss.weight", "no arguments"), *named("check", "loss.normalize_by", "many arguments"),
    *named("fit", "metric.metric", "first", "returns None", "returns text"),
    *named("fit", "metric.transform", "first", "CE class"),
]  # fmt: skip
