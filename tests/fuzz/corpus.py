"""Cases that once ended in a raw error, a wrong name or a hang."""

from __future__ import annotations

from .cases import Case
from .strategies import FIELDS
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
    *named("declare", "label.missing", "symbol", "1/2"),
    *named("fit", "label.missing", "1/2"),
    *named("check", "trainer.accumulate", "symbol"), *named("fit", "trainer.accumulate", "symbol"),
    Case("declare", (("loss.scope", Named("array")), ("label.missing", Named("-10**400")))),
    Case("check", (("label.missing", 0), ("batch.0.x", "0-d"))),
    *named("fit", "loss.normalize_by", "symbol"), *named("CheckpointHandler", "monitor", "300 names"),
    *named("declare", "label.classes", "10**400", "inf", "1/2", "0-d array"),
    *named("declare", "label.ignore", "nan", "10**400", "unprintable"),
    *named("declare", "label.dtype", "array", "object", "dict"),
    *named("declare", "metric.names", "unprintable", "loop", "300 names"),
    *named("declare", "metric.labels", "long text"), *named("declare", "loss.scope", "long text", "array"),
    one("declare", "loss.normalize_by", "labels.z"), one("declare", "metric.losses", "losses.p"),
    *named("TaskSpec.combine", "shared", "[[]]", "loop", "nested 5000", "array of names", "dict"),
    *named("TaskSpec.combine", "a", "unprintable", "class"),
    *[one("check", "net", kind) for kind in ("deep lists", "a list that contains itself")],
    *[one("fit", "net", kind) for kind in ("none later", "text later", "scalar", "detached")],
    *[one("evaluate", "net", kind) for kind in ("none later", "tuple of three later")],
    *[one("fit", "batch.1", form) for form in ("DataBatch of None", "pad text", "pad nan", "loop", "deep")],
    *[one("evaluate", "batch.0", form) for form in ("DataBatches", "pad 99", "dict of int")],
    *[one("fit", "batch.1.y", array) for array in ("csr", "loop", "3 rows", "None", "texts", "0-d")],
    *[one("check", "batch.0.x", array) for array in ("loop", "nested", "csr", "records", "np array")],
    *[one("fit", "loader", kind) for kind in ("class", "length of 10**400", "negative length")],
    *[one("evaluate", "evaluate.batch_axis", axis) for axis in (None, "x", -3, {}, 67)],
    *[one("fit", "fit.resume", value) for value in (3, {}, b"x", "\0")],
    *named("fit", "fit.event_handlers", "3000 letters", "class", "[[]]", "loop"),
    *named("fit", "trainer.clip_norm", "10**400", "1/2", "nan"),
    *named("fit", "loss.fn", "None later", "tuple later", "scalar later", "rows later"),
    *named("check", "loss.fn", "CE of axis 5"), *named("check", "metric.metric", "Accuracy of axis 7"),
    *named("fit", "metric.metric", "no methods"), *named("CheckpointHandler", "folder", "surrogate"),
    *named("StoppingHandler", "condition", "symbol", "no arguments", "class"),
    *named("check", "task.forward", "symbol", "no arguments"), *named("fit", "task.batch_fn", "class"),
    Case("check", (("loader", "DataLoader"), ("batch.0.x", "16 rows"))),
    *named("MetricSpec", "metric", "unprintable"), *named("LossSpec", "weight", "many arguments"),
    *named("fit", "loss.weight", "no arguments"), *named("check", "loss.normalize_by", "many arguments"),
    one("predict", "net", "text later"), *named("check", "net", "nested 5000"),
    *named("EarlyStoppingHandler", "min_delta", "bytes", "10**400"),
    *named("EarlyStoppingHandler", "mode", "[[]]"), *named("CheckpointHandler", "monitor", "long text"),
    *named("CheckpointHandler", "folder", "3000 letters"), *named("TensorBoardHandler", "pictures", "print"),
    *named("LabelSmoothing", "loss", "long text"),
    *named("LoggingHandler", "figures", "surrogate"),
    *named("StoppingHandler", "condition", "returns array"), *named("MixUp", "label", "long text"),
    *named("ValidationHandler", "val_data", "0-d array"), *named("fit", "fit.event_handlers", "0-d array"),
    *named("evaluate", "evaluate.event_handlers", "negative length"), one("fit", "trainer.clip_norm", 5e-324),
    Case("check", (("batch.0", "DataBatches"), ("batch.0.x", "0-d"))),
    *[Case("check", (("loader", "DataLoader"), ("batch.0.x", array))) for array in ("uint64", "texts")],
    *[Case("check", (("batch.0", "pad 3"), ("batch.0.x", array))) for array in ("None", "0-d", "symbol")],
    one("declare", "metric.names", [Named("long text")] * 2),
    *named("declare", "loss.normalize_by", "symbol"), *named("fit", "loss.normalize_by", "returns 10**400"),
    *named("fit", "metric.metric", "first", "returns None", "returns text", "returns 10**400"),
    *named("fit", "metric.transform", "first", "CE class", "returns array"),
    *named("fit", "trainer.params", "long text"), *named("check", "estimator.frozen", "long text"),
    *named("fit", "estimator.context", "nested 5000", "longwinded", "unprintable"),
    Case("declare", tuple((f"task.{field}", None) for field in FIELDS["task"])),
    *named("LogFile", "path", "int64", "dict", "bytes", "zero byte", "long text"),
    *named("InterruptHandler", "signals", "int64", "[[]]"),
    *named("ValidationHandler", "event_handlers", "int64", "class"),
    *named("MixUp", "random", "bytes", "object"),
    *named("LabelSmoothing", "loss", "[[]]", "dict"), one("LabelSmoothing", "epsilon", 5e-324),
    *named("ProgressBar", "refresh", "bytes", "dict"),
    *named("TensorBoardHandler", "pictures", "bytes"),
    *named("History", "figures", "int64", "dict of none", "[[]]"),
    *named("estimator.direction", "figure", "[[]]", "bytes"),
    *named("estimator.figures", "stage", "[[]]", "dict"),
    *named("estimator.export", "format", "[[]]", "dict"),
    *named("estimator.export", "folder", "[[]]", "bytes"),
]  # fmt: skip
