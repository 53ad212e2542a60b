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
    def check_parameters(self) -> None:
        """Raise SpecError if net or losses have other parameters than when it was made."""

    def evaluating(self) -> ContextManager[None]:
        """Return a context manager that raises SpecError if net or losses have other parameters by now."""


class Trainers(Protocol):
    """The trainers of a model, which are built when first needed."""

    def get(self) -> Mapping[str, Any]:
        """Return the trainers by name.

        Raises TrainerError if they cannot be built or do not cover all parameters.
        """

    def build(self) -> list[Problem]:
        """Build the trainers, unless done; return what is wrong."""

    def learning_rates(self) -> dict[str, float]:
        """Return the rates as figures; {} if the trainers cannot be built."""

    def training(self) -> ContextManager[None]:
        """Return a context manager in which trainers that accumulate add up gradients."""

    @property
    def left(self) -> bool: ...  # whether gradients that were added up wait for further batches
    def check_none_accumulates(self) -> None:
        """Raise TrainerError if a trainer accumulates gradients, which works only within :meth:`training`."""


class Reader(Protocol):
    """Reads the loaders of one stage; with several ranks, each reads its share of every batch."""

    def iterate(self, data: Loader, number: int | None = None) -> Iterator[Any]:
        """Iterate over a loader from its start; `number` is the number of this pass in the run."""

    def iterate_from(
        self, data: Loader, skip: int, before_rest: Callable[[], None], number: int | None = None
    ) -> Iterator[Any]:
        """Skip the first `skip` batches, call `before_rest`, and iterate over the rest of the epoch."""

    def repeat(self, data: Loader) -> Iterator[Any]:
        """Iterate over a loader again and again, until a pass yields no batch."""

    def replay(self, data: Loader, epochs: int, seed_epoch: Callable[[int], None]) -> None:
        """Bring a loader to the state that it has after a number of epochs."""

    def peek(self, data: Loader, what: str) -> tuple[Peeked, Iterator[Any]]:
        """Return a loader's first batch, and an iterator over all batches, the first included.

        `what` is the loader's name in messages. Raises DataError if `data` is not a loader, or is empty.
        """

    def peek_first(self, data: Any, what: str, number: int | None = None) -> tuple[Any, Iterator[Any]]:
        """Return what :meth:`peek` returns, with the first batch as the loader yielded it."""

    def workers(self, data: Loader) -> int:
        """Return the number of processes that make a loader's batches, besides this one."""

    def repeats_workers(self, data: Loader) -> bool:
        """Whether a loader's workers, if it has any, draw the same random numbers in a resumed run."""


class Figures(Protocol):
    """All figures of one stage, by name without prefix."""

    def read(self, quick: bool = False) -> dict[str, float]:
        """Return the values; waits for the device. If `quick`, those may be left out that take long."""

    def alone(self) -> ContextManager[None]:
        """Return a context manager that reserves the figures for one pass.

        It raises RuntimeError if another pass has reserved them.
        """

    def names(self) -> list[str]: ...
    def direction(self, figure: str) -> str | None: ...  # "min" or "max"; None if unknown


class Windows(Protocol):
    """Reads the batches that trainers accumulate, all of an update before the first is trained on."""

    @property
    def reads_ahead(self) -> bool: ...  # whether an update has several batches
    @property
    def random(self) -> Mapping[str, Any]: ...  # from where a resumed run reads on; {} if it read not ahead
    def begin(self) -> None:
        """Begin a window, as at the start of an epoch."""

    def read(
        self,
        batches: Iterator[Any],
        left: Callable[[], int | None],
        seed: Callable[[int], None],
        first: int,
        resume: Callable[[], None] | None,
    ) -> Iterator[Any]:
        """Yield batches, each after its window was read.

        ``left()`` returns how many batches the fit still trains on: no more are read. ``seed(number)`` is
        called before each but the first is read, and `resume` after those of a window that is read again.
        """

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint after the running batch needs; {} between two windows."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""


class Stage(Protocol):
    """Training or evaluation."""

    needs_outputs: bool  # whether somebody reads the batches' outputs and losses

    @property
    def figures(self) -> Figures: ...
    def reset(self) -> None:
        """Discard everything measured, as at the beginning of an epoch."""

    def describe(self) -> str:
        """Return in words how batches are run."""


class SharedParameters(Protocol):
    """The parameters of all ranks."""

    are_shared: bool  # whether all ranks have the first rank's parameters

    def average_statistics(self) -> None:
        """Give all ranks the mean of the parameters without a gradient, such as running statistics."""


class Engine(Protocol):
    """A model and its trainers, with everything that is made anew for every fit.

    `stages` and `readers` have the keys "train" and "evaluate". `loaders` are the training data's loaders if
    there are several; they are set before :meth:`read_tasks`. `hooks` are those by which the fit's handlers
    change training steps.
    """

    loaders: TaskLoaders | None
    hooks: TrainingHooks

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
    def windows(self) -> Windows: ...
    @property
    def shared(self) -> SharedParameters: ...
    @property
    def batch_axis(self) -> int: ...  # of the samples in all slots
    @property
    def balance(self) -> Any: ...  # the method of balancing, or None
    def samples_along(self, batch_axis: int) -> ContextManager[None]:
        """Return a context manager in which batches are split along an axis; ValueError if not valid."""

    def read_tasks(self, name: str, slots: Mapping[str, TaskSlots], joined: bool = False) -> None:
        """Prepare a stage for the batches of several loaders, which have these slots.

        If `slots` is empty, prepare it for a single loader. `joined` says whether the loaders' batches are
        joined to one.
        """
