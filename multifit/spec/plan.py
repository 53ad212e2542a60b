"""The plan of a run: devices, stages, trainers and loaders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..errors import counted
from ..tables import table
from .stage_plan import StagePlan, fill


@dataclass(frozen=True)
class LoaderPlan:
    """One of several loaders, and what an epoch takes from it."""

    name: str
    size: int  # how many batches it has
    batches: int  # how many an epoch takes; if these are more, the loader starts again
    slots: tuple[str, ...]  # of its batches
    sampling: str  # how loaders are mixed

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, how much is taken, and what its batches hold."""
        passes = f"{self.batches / self.size:.3g}"
        word = "pass" if passes == "1" else "passes"
        taken = f"{counted(self.batches, 'batch', 'batches')}, {passes} {word}"
        return "loader", self.name, taken, ", ".join(self.slots)


@dataclass(frozen=True)
class TrainerPlan:
    """One trainer, with the names of the parameters that it updates."""

    name: str
    optimizer: str
    learning_rate: float  # at the time of the check
    parameters: tuple[str, ...]
    size: int  # how many numbers the parameters hold
    clip_norm: float | None = None
    calls: int | None = None  # calls of operators that update them; None if the optimizer decides
    losses: tuple[str, ...] = ()  # losses that train the parameters, if there are several of both
    every: int = 1  # number of batches per update
    accumulate: bool = False  # whether an update uses all these batches, as if they were one

    def row(self) -> tuple[str, str, str, str]:
        """Return what it is, its name, what it updates, and how."""
        clip = f", gradients clipped to norm {self.clip_norm:g}" if self.clip_norm is not None else ""
        by = f"; by the losses {', '.join(self.losses)}" if self.losses else ""
        calls = f", in {counted(self.calls, 'call')}" if self.calls else ""
        summed = ", as one batch" if self.accumulate else ""
        rhythm = f", every {counted(self.every, 'batch', 'batches')}{summed}" if self.every != 1 else ""
        options = f"{self.optimizer}, learning rate {self.learning_rate:g}{clip}{calls}{rhythm}"
        return (
            "trainer",
            self.name,
            f"{counted(len(self.parameters), 'parameter')}, {self.size:,} numbers",
            f"{options}: {_span(self.parameters)}{by}",
        )


@dataclass(frozen=True)
class Plan:
    """A spec bound to a net's outputs, a batch's slots and the trainers. Prints as tables.

    Attributes
    ----------
    devices : tuple of str
        The contexts of the run.
    samples : int
        Size of the batch that was checked.
    train, evaluate : StagePlan or None
        What is done in training and in evaluation.
    trainers : tuple of TrainerPlan
        Which trainer updates which parameters.
    frozen : tuple of str
        Parameters that no trainer updates, on purpose.
    frozen_statistics : tuple of str
        Running statistics of frozen BatchNorm layers: these normalise by them in training too, and leave them
        as they are.
    notices : tuple of str
        Defaults that were used and other things worth knowing.
    precision : str
        The precision of the net's computation.
    loaders : tuple of LoaderPlan
        How much an epoch takes from each loader, if there are several.
    balance : str
        The method that weighs the tasks, with its options, and the tasks; "" without one.
    """

    devices: tuple[str, ...]
    samples: int
    train: StagePlan | None = None
    evaluate: StagePlan | None = None
    trainers: tuple[TrainerPlan, ...] = ()
    frozen: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    precision: str = "float32"
    loaders: tuple[LoaderPlan, ...] = ()
    balance: str = ""
    frozen_statistics: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Batch size, devices and precision."""
        lowered = "" if self.precision == "float32" else f", computed in {self.precision}"
        return f"batches of {self.samples} on {', '.join(self.devices)}{lowered}"

    @property
    def stages(self) -> dict[str, StagePlan]:
        """What is done with a batch in training and in evaluation, by title; one title if it is the same."""
        if self.train is not None and self.train == self.evaluate:
            return {"training, evaluating and predicting": self.train}
        stages = {"training": self.train, "evaluating and predicting": self.evaluate}
        return {title: stage for title, stage in stages.items() if stage is not None}

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, width: int | None = None) -> str:
        """Return the plan as tables.

        Parameters
        ----------
        width : int, optional
            The longest line, in characters. Defaults to the terminal's width.
        """
        parts = [self.where]
        if self.loaders:
            rows = [loader.row() for loader in self.loaders]
            title = f"an epoch, by {self.loaders[0].sampling}"
            parts.append(f"{title}\n{table((), rows, width)}")
        stages = [f"{title}\n{stage.to_text(width)}" for title, stage in self.stages.items()]
        trained = 0 if self.train is None else 1
        parts += stages[:trained]
        if self.balance:
            parts.append(fill(f"balanced by {self.balance}", width))
        if self.trainers:
            rows = [trainer.row() for trainer in self.trainers]
            if self.frozen:
                rows.append(("frozen", "", counted(len(self.frozen), "parameter"), _span(self.frozen)))
            if self.frozen_statistics:
                count = counted(len(self.frozen_statistics), "running statistic")
                rows.append(("frozen", "", count, f"used in training too: {_span(self.frozen_statistics)}"))
            parts.append("parameters\n" + table((), rows, width))
        parts += stages[trained:]
        if self.notices:
            parts.append("\n".join(fill(f"note: {notice}", width) for notice in self.notices))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict that JSON can hold."""
        return asdict(self)


def _span(names: tuple[str, ...]) -> str:
    """Return up to three names, or the first and the last of more."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} … {names[-1]}"
