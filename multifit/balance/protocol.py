"""What a method of balancing must have; the two bases have everything but the method itself."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Mapping, Optional, Protocol, Sequence

from ..arguments import Count, Valid, checked_value, known_arguments
from ..protocols import Numbers
from .measured import Measured

State = dict[str, Any]
"""What a method remembers between batches: arrays whose first axis is the tasks; on the host also numbers."""

Groups = Annotated[
    Mapping[str, Sequence[str]],
    Valid('a dict of lists of losses, such as {{"detection": ["cls", "box"]}}', lambda groups: bool(groups)),
]
On = Annotated[str, Valid('"features", "parameters" or a pattern of parameters', lambda on: on != "")]


class Balance(Protocol):
    """A method that weighs tasks against each other, batch by batch.

    It does not change: what it remembers is passed in and returned, so that a run resumes exactly, and its
    attributes are its options, by which a resumed run is compared with its checkpoint. Methods that draw
    random numbers draw them from a seed and ``measured.step``.

    Attributes
    ----------
    needs : {"nothing", "losses", "gramian"}
        What is measured. With "nothing", every task counts as present, and every loss as 1.
    on_device : bool
        Whether `weights` computes with ``measured.F`` alone: it is traced once and runs on the device, so
        that nothing waits for the losses. Otherwise all arrays are NumPy's, and every batch waits.
    every : int
        After how many batches the weights are computed again.
    groups : mapping of str to list of str, optional
        The losses of each task; None if each loss is a task of its own.
    """

    @property
    def needs(self) -> str: ...
    @property
    def on_device(self) -> bool: ...
    @property
    def every(self) -> int: ...
    @property
    def groups(self) -> Optional[Mapping[str, Sequence[str]]]: ...
    def start(self, tasks: int) -> State:
        """Return what is remembered before the first batch, in NumPy's float64 arrays."""

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the tasks' weights, of shape (K,), and what is remembered now; change neither argument.

        K is ``measured.tasks``. For methods that need the Gramian, it is the number of tasks that have a
        gradient in the batch: others are left out, with their rows of what is remembered, and get a weight
        of 0. For methods of losses, it is the number of all tasks, and ``measured.present`` tells which take
        part.
        """


class LossMethod:
    """The base of methods that need losses only; their weights multiply the whole loss.

    Parameters
    ----------
    every : int
        After how many batches the weights are computed again.
    tasks : mapping of str to sequence of str, optional
        The losses of each task, whose sum is the task's loss; by default each loss is a task.

    Raises
    ------
    TypeError
        There is no such option.
    ValueError
        An option is not valid.
    """

    needs, on_device = "losses", True

    def __init__(
        self, every: int = 1, tasks: Optional[Mapping[str, Sequence[str]]] = None, **unknown: Any
    ) -> None:
        owner = type(self).__name__
        known_arguments(owner, unknown, _options(type(self)))
        self.every: int = checked_value(f"{owner}: every", every, Count)
        self.groups = None if tasks is None else checked_value(f"{owner}: tasks", tasks, Groups)

    def start(self, tasks: int) -> State:
        """Return what is remembered before the first batch: nothing."""
        return {}


class GramianMethod(LossMethod):
    r"""The base of methods that need the inner products of the tasks' gradients.

    Their weights combine the gradients of what tasks share. Parameters of one task only are moved by the
    gradient of that task's loss, without a weight.

    Parameters
    ----------
    on : {"features", "parameters"} or str
        Whose gradients are compared: those of the features at which the tasks part, of all parameters that
        they share, or of the parameters whose names match a pattern.
    normalize : bool
        Whether the gradients are scaled to a length of 1 before they are compared and combined.
    every, tasks
        As for all methods.

    Raises
    ------
    TypeError
        There is no such option.
    ValueError
        An option is not valid.
    """

    needs, on_device = "gramian", False

    def __init__(
        self,
        on: str = "features",
        normalize: bool = False,
        every: int = 1,
        tasks: Optional[Mapping[str, Sequence[str]]] = None,
        **unknown: Any,
    ) -> None:
        super().__init__(every, tasks, **unknown)
        owner = type(self).__name__
        self.on: str = checked_value(f"{owner}: on", on, On)
        self.normalize: bool = checked_value(f"{owner}: normalize", normalize, bool)

    def weights(self, measured: Measured, state: State) -> tuple[Numbers, State]:
        """Return the weights that the Gramian alone determines."""
        return self.solve(measured.gramian, measured.step), state

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights (K,) for a Gramian (K, K) with a positive diagonal.

        Both are NumPy arrays. K differs from batch to batch: tasks without a gradient, such as those whose
        labels are missing in all samples, are left out, and get a weight of 0. So do not return an array of
        fixed length.
        """
        raise NotImplementedError


def _options(method: type) -> list[str]:
    """Return the names of all options of a method, its own first."""
    constructors = [vars(each)["__init__"] for each in method.__mro__[:-1] if "__init__" in vars(each)]
    parameters = (p for each in constructors for p in list(inspect.signature(each).parameters.values())[1:])
    return list(dict.fromkeys(p.name for p in parameters if p.kind is not p.VAR_KEYWORD))
