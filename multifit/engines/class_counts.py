"""Count the classes of the training labels, for losses with balanced class weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..distributed import unwrapped
from ..distributed.log_once import LogOnce
from ..sampling import TaskBatch, TaskLoaders
from ..spec.checks.data import one_shot
from ..spec.parsing import presence
from ..spec.terms import Term
from ..spec.validate import BALANCED
from ..utils.errors import DataError
from ..utils.seeding import preserve_rng
from ..utils.stages import TRAIN
from .batch import as_numpy
from .loaders import loaders_of


def balance_classes(
    session: Any,
    data: Any,
    ends: bool,
    log_once: LogOnce,
    takes_lengths: Callable[[Any], bool] = lambda loss: False,
) -> None:
    """Set the class weights of the losses with balanced ones, from one pass over the training data.

    The weight of a class is n / (K c): with n labels, K classes that occur, and c labels of this class, as in
    scikit-learn's ``compute_class_weight``; 1 if the class does not occur. The pass leaves NumPy's and
    Python's random states, and the samplers of DataLoaders, as they were. Ranks count together. `ends` says
    whether a loader without a length ends. `takes_lengths` says of a loss whether its second label holds the
    lengths of sequences, which are padded. Raises DataError for data that cannot be read twice.
    """
    terms = [term for term in session.spec.terms if term.spec.class_weights == BALANCED]
    session.balanced_weights.clear()
    if not terms:
        return
    logger, names = log_once.logger, ", ".join(term.where for term in terms)
    loaders = data.loaders if isinstance(data, TaskLoaders) else {None: data}
    for loader in map(unwrapped, loaders.values()):
        if one_shot(loader) or not (ends or hasattr(loader, "__len__")):
            why = "can be read only once" if one_shot(loader) else "does not know its length, and may not end"
            raise DataError(
                f'{names}: class_weights="{BALANCED}" are counted in a pass over train_data, but a '
                f"{type(loader).__name__} {why}; give the weights as numbers, or a loader with a __len__ "
                "that can be read again"
            )
    session.balanced_weights.update({term.key: [1.0] for term in terms})  # while they are counted
    logger.info("reading train_data once, to count the classes of %s", names)
    counts: dict[str, Counter[int]] = {term.key: Counter() for term in terms}
    with preserve_rng():
        for name, loader in loaders.items():
            with loaders_of(unwrapped(loader)).preserved(unwrapped(loader)):
                _count(session, name, loader, terms, counts, takes_lengths)
    for term in terms:
        occurring = sum(session.world.gather(counts[term.key]), Counter[int]())
        mean, last = sum(occurring.values()) / max(len(occurring), 1), max(occurring, default=-1)
        weights = [mean / occurring[key] if key in occurring else 1.0 for key in range(last + 1)]
        session.balanced_weights[term.key] = weights
        shown = ", ".join(f"{key}: {weight:.4g}" for key, weight in enumerate(weights[:10]))
        logger.info("%s: class weights %s%s", term.where, shown, ", …" * (last > 9))


def _count(
    session: Any,
    name: str | None,
    loader: Any,
    terms: list[Term],
    counts: dict[str, Counter[int]],
    takes_lengths: Callable[[Any], bool],
) -> None:
    """Add this rank's labels of a loader to the counts by loss; `name` is that of one of several loaders."""
    splitter = session.splitter(TRAIN, changes=False)
    for raw in session.readers[TRAIN].iterate(loader, 0):
        batch = splitter.split(raw if name is None else TaskBatch({name: raw}))
        for slots in batch.slots if isinstance(batch.slots, list) else [batch.slots]:
            for term in terms:
                occurrences = np.bincount(
                    _classes(session, term, slots, takes_lengths(term.spec.fn))
                ).tolist()
                counts[term.key].update(dict(enumerate(occurrences)))


def _classes(session: Any, term: Term, slots: Mapping[str, Any], has_lengths: bool) -> Any:
    """Return the class of each of a device's labels, but for those that are no class indices.

    Nor does it return labels that are ignored, missing or padding, or whose weight is 0.
    """
    name, masks = term.labels[0].name, [presence(term.labels[0].name), term.refs[-1].name]
    if slots.get(name) is None:
        return np.zeros(0, int)
    values = as_numpy(slots[name]).astype("float64")
    counts = (values >= 0) & (values < 2**24) & (values == np.trunc(values))
    of_loss = (getattr(term.spec.fn, attribute, None) for attribute in ("_ignore_label", "ignore_index"))
    for ignored in (*of_loss, session.spec.label_specs[name].ignore):
        counts &= values != ignored  # None equals none
    for mask in (slots[mask] for mask in masks if slots.get(mask) is not None):  # all classes weigh 1 now
        counts &= as_numpy(mask) != 0
    if has_lengths:
        counts &= np.arange(values.shape[1]) < as_numpy(slots[term.labels[1].name])[:, None]
    return values[counts].astype(int)
