"""What an engine holds, as the rest of the package sees it: model, trainers, loaders and stages."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Iterator, Mapping, Protocol, Sequence

from ..distributed import World
from ..errors import Problem
from ..events import TrainingHooks
from ..protocols import Context, Loader, Net, Parameter
from ..sampling import TaskLoaders
from ..spec import TaskSpec
from ..spec.task_slots import TaskSlots
from ..state import RunState
from .first_batch import Peeked


class Model(Protocol):
    """A net on its devices."""

    @property
    def net(self) -> Net: ...
    @property
    def contexts(self) -> Sequence[Context]: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...  # by structural name, such as body.0.weight
    @property
    def hybridizable(self) -> bool: ...  # whether net.hybridize() was not called, but could be
    def check_parameters(self, trains: bool = True) -> None:
        """Raise SpecError if net and losses have other parameters now; further ones only if it `trains`."""


class Trainers(Protocol):
    """The trainers of a model, which are built when first needed."""

    def get(self) -> Mapping[str, Any]:
        """Return the trainers by name; raises TrainerError if they cannot be built or do not cover all."""

    def build(self) -> list[Problem]:
        """Build the trainers, unless done; return what is wrong."""

    def sparse(self) -> list[str]:
        """Return the names of the parameters of which the net holds but some rows."""

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures; none if the trainers cannot be built."""

    def training(self) -> ContextManager[None]:
        """Return a block in which trainers that accumulate add up gradients."""

    def check_none_accumulates(self) -> None:
        """Raise TrainerError if trainers add up gradients, outside of such a block."""


class Reader(Protocol):
    """Reads the loaders of one stage; with several ranks, each reads its share of every batch."""

    def iterate(self, data: Loader, number: int | None = None) -> Iterator[Any]:
        """Iterate over a loader from its start; `number` is that of this pass in its run."""

    def iterate_from(
        self, data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
    ) -> Iterator[Any]:
        """Iterate over the rest of an epoch, and call `before_rest` before the first batch that is left."""

    def repeat(self, data: Loader) -> Iterator[Any]:
        """Iterate over a loader again and again, until a pass yields no batch."""

    def replay(self, data: Loader, epochs: int, seed_epoch: Callable[[int], None]) -> None:
        """Bring a loader to the state that it has after a number of epochs."""

    def peek(self, data: Loader, what: str) -> tuple[Peeked, Iterator[Any]]:
        """Return a loader's first batch, and an iterator over all batches, the first included.

        `what` is the loader's name in messages. Raises DataError if `data` is not a loader, is empty, or is
        an iterator that the running epoch reads.
        """

    def peek_first(self, data: Any, what: str, number: int | None = None) -> tuple[Any, Iterator[Any]]:
        """Return the same, the first batch as the loader yielded it."""

    def reading(self, data: Loader) -> ContextManager[None]:
        """Return a block in which an epoch reads a loader: within it, nothing else reads its iterators."""

    def workers(self, data: Loader) -> int:
        """Return the number of processes that make a loader's batches, beside this one."""

    def repeats_workers(self, data: Loader) -> bool:
        """Whether what a loader's workers draw at random, if there are any, is the same in a resumed run."""


class Figures(Protocol):
    """All figures of one stage, by name without prefix."""

    def read(self) -> dict[str, float]:
        """Return the values; waits for the device."""

    def alone(self) -> ContextManager[None]:
        """Return a block in which one pass has the figures; RuntimeError within another's."""

    def names(self) -> list[str]: ...
    def direction(self, figure: str) -> str | None: ...  # "min" or "max"; None if unknown


class Stage(Protocol):
    """Training, or evaluating."""

    needs_outputs: bool  # whether somebody reads outputs and losses of the batches

    @property
    def figures(self) -> Figures: ...
    def reset(self) -> None:
        """Discard everything measured, as at the beginning of an epoch."""

    def describe(self) -> str:
        """Return in words how batches are run."""


class SharedParameters(Protocol):
    """The parameters of all ranks."""

    are_shared: bool  # whether all ranks have the first one's

    def average_statistics(self) -> None:
        """Give all ranks the mean of what no gradient moves."""


class Engine(Protocol):
    """A model and its trainers, with what is made new for every fit.

    `stages` and `readers` are named "train" and "evaluate". `loaders` are those that train, if they are
    several; they are set before :meth:`read_tasks`. `hooks` are what handlers change while training.
    """

    loaders: TaskLoaders | None
    hooks: TrainingHooks | None

    @property
    def model(self) -> Model: ...
    @property
    def trainers(self) -> Trainers: ...
    @property
    def spec(self) -> TaskSpec: ...
    @property
    def state(self) -> RunState: ...
    @property
    def world(self) -> World: ...
    @property
    def stages(self) -> Mapping[str, Stage]: ...
    @property
    def readers(self) -> Mapping[str, Reader]: ...
    @property
    def shared(self) -> SharedParameters: ...
    @property
    def batch_axis(self) -> int: ...  # of the samples in all slots
    @property
    def balance(self) -> Any: ...  # the method of balancing, or None
    def samples_along(self, batch_axis: int) -> ContextManager[None]:
        """Return a block in which batches are split along another axis; raises ValueError for none."""

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for batches of several loaders, which have these slots; for one if there are none.

        `joined` says whether they make one batch.
        """
