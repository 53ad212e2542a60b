"""Strategies of cases: right arguments in which a few are replaced, by almost right or absurd ones."""

from typing import Any

from hypothesis import strategies as st

from .cases import METHODS, Case
from .data import ARRAYS, BATCHES, LOADERS, SLOTS
from .nets import NETS
from .values import VALUES, Named

NAMES = ["p", "q", "x", "y", "z", "outputs.p", "labels.y", "labels.x", "outputs.y", "losses.p", "m", "P", ""]
WORDS = ["train_m", "min", "auto", "epoch", "train", "evaluate", "int32", "bfloat16", "adam", ".*", "p.*"]

some_name = st.sampled_from(NAMES)
literal = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(width=32), st.text(max_size=8),
    st.binary(max_size=4), some_name, st.sampled_from(WORDS),
)  # fmt: skip
name_lists = st.recursive(
    st.lists(st.one_of(some_name, st.just(...)), max_size=4),
    lambda inner: st.lists(st.one_of(some_name, inner), max_size=3),
    max_leaves=6,
)
absurd = st.sampled_from(sorted(VALUES)).map(Named)
either = st.one_of(absurd, literal)
keys = st.one_of(some_name, st.sampled_from(WORDS), st.integers(0, 3))
value = st.one_of(
    absurd, absurd, literal, name_lists, st.lists(either, max_size=3),
    st.dictionaries(keys, either, max_size=2),
)  # fmt: skip

FIELDS = {
    "task": [
        "inputs", "outputs", "labels", "losses", "metrics", "batch", "unused", "forward", "batch_fn",
        "evaluate", "name", "state",
    ],
    "loss": [
        "fn", "outputs", "labels", "weight", "returns", "minimize", "normalize_by", "class_weights",
        "sample_weight", "arguments", "trainers",
    ],
    "metric": [
        "metric", "outputs", "labels", "losses", "mode", "stage", "transform", "names", "sample_weight",
        "arguments",
    ],
    "label": ["name", "dtype", "classes", "ignore", "missing"],
    "trainer": [
        "params", "optimizer", "optimizer_params", "lr_scheduler", "clip_norm", "every", "accumulate",
    ],
    "estimator": [
        "trainers", "context", "initializer", "frozen", "precision", "balance", "accumulate", "world",
    ],
    "fit": ["batches", "epochs", "event_handlers", "resume", "sampling", "val_batches", "overfit"],
    "evaluate": ["event_handlers", "batch_axis", "batches"],
}  # fmt: skip
OPTIONS = [
    "learning_rate", "wd", "momentum", "clip_gradient", "rescale_grad", "lr_scheduler", "multi_precision",
    "beta1", "begin_num_update",
]  # fmt: skip


def places(*sections: str) -> list[str]:
    return [f"{section}.{field}" for section in sections for field in FIELDS[section]]


options = st.tuples(
    st.just("trainer.optimizer_params"), st.dictionaries(st.sampled_from(OPTIONS), either, max_size=2)
)
declared = st.tuples(st.sampled_from(places("task", "loss", "metric", "label")), value)
trained = st.tuples(st.sampled_from(places("trainer", "estimator")), value)
passed = st.tuples(st.sampled_from(places("fit", "evaluate")), value)
nets = st.tuples(
    st.just("net"), st.one_of(st.sampled_from(sorted(NETS)), st.sampled_from(sorted(NETS)), absurd)
)
loaders = st.tuples(st.just("loader"), st.sampled_from(sorted(LOADERS)))
batch = st.sampled_from([0, 0, 1, 1, 2])
arrays = st.tuples(
    st.builds("batch.{}.{}".format, batch, st.sampled_from(SLOTS)), st.sampled_from(sorted(ARRAYS))
)
forms = st.tuples(st.builds("batch.{}".format, batch), st.sampled_from(sorted(BATCHES)))


def _case(what: st.SearchStrategy[str], change: st.SearchStrategy[Any]) -> st.SearchStrategy[Case]:
    return st.builds(Case, what, st.lists(change.map(quick), min_size=1, max_size=3).map(tuple))


def quick(change: tuple[str, Any]) -> tuple[str, Any]:
    """Return a change without a number of batches or epochs that would take long, and rightly so."""
    place, number = change
    lengthy = number == Named("!10**400") or (isinstance(number, int) and number > 3)
    return (place, 3) if lengthy and place.endswith(("batches", "epochs")) else change


declarations = _case(st.just("declare"), declared)
runs = _case(
    st.sampled_from(METHODS[1:]),
    st.one_of(declared, trained, options, passed, nets, loaders, arrays, arrays, forms),
)
KINDS = {"declarations": declarations, "runs": runs}
