"""The stages of a run, and how the names of their figures begin.

The training stage is "train", and its figures are ``train_…``. The stage of evaluations is "evaluate"; within
a fit, their figures are recorded as ``val_…``; those of several sets as ``val_<set>_…``.
"""

from collections.abc import Iterable

TRAIN, EVALUATE = "train", "evaluate"
STAGES = (TRAIN, EVALUATE)
PREFIXES = {TRAIN: "train", EVALUATE: "val"}
STAGE_OF_PREFIX = {prefix: stage for stage, prefix in PREFIXES.items()}


def figure_name(stage: str, name: str) -> str:
    """Return the full name of a stage's figure: ``val_loss`` for the loss of "evaluate"."""
    return f"{PREFIXES[stage]}_{name}"


def split_figure(figure: str) -> tuple[str, str]:
    """Return the prefix and the rest of a figure's name; the prefix is "" without a stage, as for ``lr``."""
    prefix, _, name = figure.partition("_")
    return (prefix, name) if name and prefix in STAGE_OF_PREFIX else ("", figure)


def split_set(name: str, sets: Iterable[str]) -> tuple[str, str]:
    """Return the set for validation and the rest of a figure's name without its stage.

    The set is "" if the name begins with none: ``split_set("noisy_loss", ["noisy"])`` is ("noisy", "loss").
    """
    own = max((each for each in sets if name.startswith(f"{each}_")), key=len, default="")
    return own, name[len(own) + 1 :] if own else name
