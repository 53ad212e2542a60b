"""Every absurd value at every place, alone: what random search would find only now and then."""

from collections.abc import Iterator
from typing import Any

from .cases import METHODS, Case
from .data import ARRAYS, BATCHES, LOADERS, SLOTS
from .nets import NETS
from .strategies import FIELDS, OPTIONS
from .values import VALUES, Named

ALONE: list[Any] = [Named(name) for name in sorted(VALUES)]
ALONE += [None, True, -1, 0, 3, 1.5, 5e-324, "", "p", "x", "labels.y", "train_loss", b"", (), [], {}, ...]
RUNS = {"fit": ["fit"], "evaluate": ["evaluate"], "trainer": ["check", "fit"], "estimator": ["check", "fit"]}


def every_case() -> Iterator[Case]:
    """Yield thousands of cases of one change each, and of odd arrays in odd batches and loaders."""
    for section, fields in FIELDS.items():
        places = [f"{section}.{field}" for field in fields if field not in ("batches", "epochs")]
        for what in RUNS.get(section, ["declare", "fit", "predict"]):
            yield from (Case(what, ((place, value),)) for place in places for value in ALONE)
    for option in OPTIONS:
        yield from (Case("fit", (("trainer.optimizer_params", {option: value}),)) for value in ALONE)
    for what in METHODS[1:]:
        yield from (Case(what, (("net", net),)) for net in [*NETS, *ALONE])
        yield from (Case(what, (("loader", loader),)) for loader in LOADERS)
        for number in (0, 1):
            yield from (Case(what, ((f"batch.{number}", form),)) for form in BATCHES)
            places = [f"batch.{number}.{slot}" for slot in SLOTS]
            yield from (Case(what, ((place, array),)) for place in places for array in ARRAYS)
    odd = [("batch.0", form) for form in BATCHES] + [("loader", loader) for loader in LOADERS]
    for slot in SLOTS:
        yield from (Case("check", (each, (f"batch.0.{slot}", array))) for each in odd for array in ARRAYS)
