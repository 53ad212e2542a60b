"""What a method of balancing is, what it gets in a batch, and how it is asked for the tasks' weights."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np

from ..utils.arguments import Count, Share, Valid, all_positive, checked_value, known_arguments, one_of
from ..utils.errors import SpecError, user_code
from ..utils.protocols import Numbers
from ..utils.text import counted, shown

LARGEST = 1e300  # a loss beyond it, or NaN, is not finite
PULL_APART = -0.1  # two tasks whose gradients have a cosine below it are said to pull apart, or to conflict


class Measured(NamedTuple):
    """The losses and gradients of K tasks in one batch, in the order in which the tasks were declared.

    Attributes
    ----------
    tasks : int
        K.
    losses : array of shape (K,)
        Every task's loss, times its declared weight; 1 for a task that is absent.
    present : array of shape (K,)
        1 for the tasks that take part in the batch, else 0. A task is absent if its loss is exactly 0, such
        as when no sample has a label. If any loss is not finite, all tasks are absent.
    epoch : array of shape (K,)
        The index of the epoch, K times.
    step : int
        The number of batches trained before this one; not known on a device.
    gramian : array of shape (K, K), optional
        The inner products of the tasks' gradients, for methods that need them. Its diagonal is positive, as
        tasks without a gradient are left out.
    preference : array of shape (K,) or 1.0
        How much the tasks count, from the option `preference` of a method of gradients. The mean over all
        tasks is 1, whichever are present.
    F : module
        The operators for the arrays, which are float64: NumPy or, on a device, an engine's module with
        operators of the same names. On a device, all arithmetic must be between arrays of shape (K,), or with
        numbers.
    """

    tasks: int
    losses: Any
    present: Any
    epoch: Any
    step: int = 0
    gramian: Any = None
    F: Any = np
    preference: Any = 1.0

    def total(self, values: Any) -> Any:
        """Return the sum of `values` over the tasks that are present, K times."""
        return self.repeated(self.F.sum(values * self.present, axis=0, keepdims=True))

    def repeated(self, value: Any) -> Any:
        """Return an array of shape (1,) as one of shape (K,)."""
        return self.F.broadcast_to(value, (self.tasks,))


def measured_losses(F: Any, tasks: int, losses: Any, epoch: Any, step: int = 0) -> Measured:
    """Return the losses (K,) of a batch with the tasks that are present, without waiting for the values."""
    ones = F.ones_like(losses)
    finite = F.broadcast_to(F.min((F.abs(losses) < LARGEST) * ones, axis=0, keepdims=True), (tasks,))
    present = (losses != 0) * finite
    return Measured(tasks, F.where(present == 1, losses, ones), present, epoch, step, F=F)


State = dict[str, Any]
"""What a method remembers between batches: arrays whose first axis is the tasks, or, on the host, numbers."""

Groups = Annotated[
    Mapping[str, Sequence[str]],
    Valid('a dict of lists of losses, such as {{"detection": ["cls", "box"]}}', lambda groups: bool(groups)),
]
On = Annotated[str, Valid('"features", "parameters" or a pattern of parameters', lambda on: on != "")]
Normalize = bool | Annotated[str, one_of("largest", "mean")]
Preference = Annotated[
    Mapping[str, float], Valid('a dict of numbers above 0 by task, such as {{"detection": 2}}', all_positive)
]


class Balance(Protocol):
    """A method that weighs tasks against each other, batch by batch.

    The object never changes. Its state is passed in and returned, so that a run resumes exactly. Its
    attributes are its options, which a resumed run compares with those in its checkpoint. Random numbers are
    drawn from a seed and ``measured.step``.

    Attributes
    ----------
    needs : {"nothing", "losses", "gramian"}
        What is measured. With "nothing", every loss counts as 1, and every task as present; on the device,
        only the tasks with labels in the batch.
    on_device : bool
        Whether `weights` computes with ``measured.F`` alone. It is then traced once and runs on the device,
        so that nothing waits for the losses. Otherwise, all arrays are NumPy's, and every batch waits for
        the device.
    every : int
        The number of batches after which the weights are computed again.
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
    def groups(self) -> Mapping[str, Sequence[str]] | None: ...
    def start(self, tasks: int) -> State:
        """Return the state before the first batch, in NumPy's float64 arrays."""

    def weights(self, measured: Measured, state: State) -> tuple[Any, State]:
        """Return the tasks' weights, of shape (K,), and the new state, without changing the arguments.

        K is ``measured.tasks``. For methods that need the Gramian, K is the number of tasks that have a
        gradient in the batch: all other tasks are left out, together with their rows of the state, and get a
        weight of 0. For methods of losses, K is the number of all tasks, and ``measured.present`` says which
        of them take part.

        The weights of a method with an attribute ``averages = True`` are multiplied by the share of the tasks
        that are present; see :class:`LossMethod`.
        """


class LossMethod:
    """The base of methods that need losses only; their weights multiply the whole loss.

    Parameters
    ----------
    every : int
        The number of batches after which the weights are computed again.
    tasks : mapping of str to sequence of str, optional
        The names of each task's losses, whose sum is the task's loss. By default, each loss is a task.

    Attributes
    ----------
    averages : bool
        Whether the weights of K tasks add up to about 1, as in a mean. If K' of K tasks are present in a
        batch, the weights of such a method are multiplied by K'/K, so that a task's weight stays near 1/K,
        whichever other tasks are absent. Tasks with a declared weight of 0 do not count. False by default:
        the weights are used as they are.

    Raises
    ------
    TypeError
        An option does not exist.
    ValueError
        An option is not valid.
    """

    needs, on_device, averages = "losses", True, False

    def __init__(
        self, every: int = 1, tasks: Mapping[str, Sequence[str]] | None = None, **unknown: Any
    ) -> None:
        owner = type(self).__name__
        if "preference" in unknown:
            ways = "methods of gradients, such as UPGrad, have it, and DWA and RLW keep LossSpec(weight=2)"
            raise TypeError(f'{owner} has no argument "preference"; {ways}')
        known_arguments(owner, unknown, options_of(type(self)))
        self.every: int = checked_value(f"{owner}: every", every, Count)
        self.groups = None if tasks is None else checked_value(f"{owner}: tasks", tasks, Groups)

    def start(self, tasks: int) -> State:
        """Return the state before the first batch: an empty one."""
        return {}


class GramianMethod(LossMethod):
    r"""The base of methods that need the inner products of the tasks' gradients.

    Their weights combine the gradients of the parameters that tasks share. Parameters that belong to one task
    are updated by the gradient of that task's loss, without a weight.

    Parameters
    ----------
    on : {"features", "parameters"} or str
        The gradients that are compared: those of the features where the tasks branch, of all parameters
        that the tasks share, or of the parameters whose names match a pattern.
    normalize : bool or {"largest", "mean"}
        Whether the gradients are scaled to a length of 1 before they are compared and combined; or to the
        largest or the mean length of the gradients in the batch, which leaves a learning rate in its units.
    every, tasks
        As for :class:`LossMethod`.
    preference : mapping of str to float, optional
        How important tasks are, such as ``{"detection": 2}`` for twice as important as any other; 1 for
        tasks that are not named. Only ratios matter: the numbers are scaled to a mean of 1. A method uses
        them where it computes the weights, so that they count whatever scale the losses have. Each method's
        documentation has the formula. The weights of a method of your own are multiplied by them, unless its
        `solve` has a third argument, `preference`, or it overrides `weights`: then it has to use
        ``measured.preference``.
    smooth : float
        The share of the weights before in an exponential moving average of the weights over the batches in
        which they are computed, such as 0.9 against the noise of small batches; 0 for none. The average
        starts at a task's first weight, and stays as it is in batches without the task. If gradients are
        scaled, it is that of the weights of scaled gradients.

    Raises
    ------
    TypeError
        An option does not exist.
    ValueError
        An option is not valid.

    References
    ----------
    "largest": B. Lin et al.: Dual-Balancing for Multi-Task Learning. 2023, arXiv:2308.12029. `smooth`:
    S. Zhou et al.: On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond. 2022,
    NeurIPS.
    """

    needs, on_device = "gramian", False

    def __init__(
        self,
        on: str = "parameters",
        normalize: bool | str = False,
        every: int = 1,
        tasks: Mapping[str, Sequence[str]] | None = None,
        preference: Mapping[str, float] | None = None,
        smooth: float = 0.0,
        **unknown: Any,
    ) -> None:
        super().__init__(every, tasks, **unknown)
        owner = type(self).__name__
        self.on: str = checked_value(f"{owner}: on", on, On)
        self.normalize: bool | str = checked_value(f"{owner}: normalize", normalize, Normalize)
        self.preference = checked_value(f"{owner}: preference", preference, Preference | None)
        self.smooth: float = checked_value(f"{owner}: smooth", smooth, Share)

    def weights(self, measured: Measured, state: State) -> tuple[Numbers, State]:
        """Return the weights that the Gramian and the preference determine."""
        solve: Callable[..., Numbers] = self.solve
        arguments, preference = (measured.gramian, measured.step), measured.preference
        if isinstance(preference, float):
            return solve(*arguments), state
        if "preference" in inspect.signature(solve).parameters:
            return solve(*arguments, preference=preference), state
        weights = solve(*arguments)  # of another shape, they are refused where the method is named
        return weights * preference if np.shape(weights) == np.shape(preference) else weights, state

    def solve(self, gramian: Numbers, step: int = 0) -> Numbers:
        """Return the weights (K,) for a Gramian (K, K) with a positive diagonal.

        Both are NumPy arrays. K differs from batch to batch: tasks without a gradient, such as those whose
        labels are missing in all samples, are left out, and get a weight of 0. So do not return an array of
        fixed length.
        """
        raise NotImplementedError


def options_of(method: type) -> list[str]:
    """Return the names of all options of a method, its own first."""
    constructors = [vars(each)["__init__"] for each in method.__mro__[:-1] if "__init__" in vars(each)]
    parameters = (p for each in constructors for p in list(inspect.signature(each).parameters.values())[1:])
    return list(dict.fromkeys(p.name for p in parameters if p.kind is not p.VAR_KEYWORD))


SMOOTHED = "smoothed weights"  # what is remembered for the option `smooth`, beside what the method remembers

Shape = Callable[[Any], tuple[int, ...] | None]
"""Returns the shape of an array of numbers; None for anything else."""


def shape_of_numbers(value: Any) -> tuple[int, ...] | None:
    """Return the shape of what NumPy reads as numbers."""
    try:
        return np.asarray(value, np.float64).shape
    except (TypeError, ValueError):
        return None


def ask(method: Any, name: str, *arguments: Any) -> Any:
    """Call a function of a method, such as ``start``."""
    with user_code(lambda: _where(method, name)):
        return getattr(method, name)(*arguments)


def ask_weights(
    method: Balance, measured: Measured, state: State, shape: Shape = shape_of_numbers
) -> tuple[Any, State]:
    """Return a method's weights for the K tasks of a batch, of shape (K,), and its new state."""
    with user_code(lambda: _where(method, "weights")):
        weights, state = method.weights(measured, state)
        returned = shape(weights)
    if returned != (measured.tasks,):
        described = f"an array of shape {returned}" if returned else shown(weights)
        computed = "" if measured.F is np else ", computed with measured.F"
        present = "" if measured.gramian is None else " with a gradient in this batch; others are left out"
        raise SpecError(
            f"{_where(method, 'weights')} returned {described}; it must return an array of shape "
            f"{(measured.tasks,)}{computed}: the weights of the {counted(measured.tasks, 'task')}{present}"
        )
    return weights, state


def _where(method: Balance, name: str) -> str:
    """Return the name of the function that the user wrote: in most methods of gradients, that is `solve`."""
    if name == "weights" and getattr(type(method), name, None) is GramianMethod.weights:
        name = "solve"
    return f"balance: {type(method).__name__}.{name}"


def weigh_losses(
    method: Balance,
    measured: Measured,
    weights: Any,
    state: State,
    shape: Shape = shape_of_numbers,
    weighed: int | None = None,
) -> tuple[Any, State]:
    """Return the weights for the losses of a batch, and the method's new state, without waiting for values.

    If a loss is not finite, the weights stay those of the previous batch, `weights`, and the state stays what
    it was. A task that is absent has a weight of 0. `shape` returns the shape of an array. `weighed` is the
    number of tasks that can be present, by default all.
    """
    F = measured.F
    new, state = ask_weights(method, measured, state, shape)
    if getattr(method, "averages", False):
        new = new * measured.total(F.ones_like(measured.present)) / (weighed or measured.tasks)
    any_present = measured.repeated(F.max(measured.present, axis=0, keepdims=True))
    return F.where(measured.present == 1, new, weights * (1 - any_present)), state


def weigh_gradients(
    method: Any,
    losses: Numbers,
    gramian: Numbers,
    weights: Numbers,
    state: State,
    epoch: int = 0,
    step: int = 0,
    weighed: int | None = None,
    preference: Numbers | None = None,
) -> tuple[Numbers, State]:
    """Return the weights for the losses (K,) and Gramian (K, K) of a batch, and the method's new state.

    Tasks whose gradient is 0 are left out, and have a weight of 0. If a number is not finite, or all
    gradients are 0, the weights and the state stay what they were. `weighed` is the number of tasks that can
    have a gradient, by default all. `preference` (K,) is how much each task counts.
    """
    squares = gramian.diagonal().tolist()
    if not (isfinite(gramian.sum() + losses.sum()) and max(squares) > 0):
        return weights, state
    options = getattr(method, "normalize", False), getattr(method, "smooth", 0)
    if min(squares) > 0 and preference is None and not any(options):  # the usual case, with fewer arrays
        ones = np.array([1.0] * len(squares))
        measured = Measured(len(ones), losses, ones, epoch * ones, step, gramian)
        return _asked(method, measured, state)
    has_gradient = gramian.diagonal() > 0
    inner = gramian[np.ix_(has_gradient, has_gradient)]
    scale = _scale(np.sqrt(inner.diagonal()), options[0])
    inner = inner / np.outer(scale, scale)
    memory = {name: value for name, value in state.items() if name != SMOOTHED}
    of_those = {name: value[has_gradient] if _has_rows(value) else value for name, value in memory.items()}
    tasks, ones = len(inner), np.ones(len(inner))
    preferred = 1.0 if preference is None else preference[has_gradient]
    measured = Measured(tasks, losses[has_gradient], ones, epoch * ones, step, inner, preference=preferred)
    new, changed = _asked(method, measured, of_those)
    changed = {name: _scattered(memory[name], has_gradient, value) for name, value in changed.items()}
    if getattr(method, "averages", False):
        new = new * tasks / (weighed or len(has_gradient))
    if options[1]:
        average = state.get(SMOOTHED, np.full(len(has_gradient), np.nan))[has_gradient]
        new = np.where(np.isnan(average), new, options[1] * average + (1 - options[1]) * new)
        changed[SMOOTHED] = _scattered(state.get(SMOOTHED, np.nan), has_gradient, new)
    weights = np.zeros(len(has_gradient))
    weights[has_gradient] = new / scale
    return weights, changed


def _scale(lengths: Numbers, normalize: bool | str) -> Numbers:
    """Return by what gradients are divided."""
    if not normalize:
        return np.ones(len(lengths))
    common = {"largest": lengths.max(), "mean": lengths.mean()}
    return np.asarray(lengths / common.get(str(normalize), 1.0))


def _asked(method: Any, measured: Measured, state: State) -> tuple[Numbers, State]:
    new, changed = ask_weights(method, measured, state)
    return np.asarray(new, np.float64), changed


def _has_rows(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def _scattered(before: Any, has_gradient: Numbers, value: Any) -> Any:
    if not _has_rows(value):
        return value
    if not _has_rows(before):  # the number from which all tasks started
        before = np.full((len(has_gradient), *value.shape[1:]), before, value.dtype)
    after = before.copy()
    after[has_gradient] = value
    return after
