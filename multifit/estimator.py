"""MultiEstimator: the loop, the same for every net."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple

from .checks import loader_problems, one_shot
from .errors import SpecError, UserCodeError, raise_problems
from .events import Events, HandlerError, echoing
from .gluon.defaults import default_spec
from .gluon.engine import Engine, gathered
from .gluon.facade import FigureMetric, single_trainer
from .gluon.feed import length, no_batch, peeked, rewound
from .gluon.proof import check_monitors, make_plan, prove, undisturbed
from .handlers import ProgressBar, validation_data, with_defaults
from .history import History
from .plan import Plan
from .spec import TaskSpec
from .state import RunState
from .triggers import whole_number

__all__ = ["MultiEstimator"]


class _Moments(NamedTuple):
    begin: str
    batch_begin: str
    batch_end: str
    end: str


TRAIN = _Moments("epoch_begin", "batch_begin", "batch_end", "epoch_end")
EVALUATE = _Moments("evaluate_begin", "evaluate_batch_begin", "evaluate_batch_end", "evaluate_end")


class MultiEstimator:
    """Trains, evaluates and predicts with a net, as its TaskSpec says.

    Parameters
    ----------
    net : Block
        Any Gluon net, hybridized or not, initialised or not.
    spec : TaskSpec or gluon.loss.Loss
        What is routed where. A loss alone will do for a net with one input, one output and one label.
    trainers : gluon.Trainer, TrainerSpec or mapping of str to these, optional
        Who moves which parameters; default: Adam at 1e-3 over all.
    context : Context or list of Context, optional
        Where to run; default: where the net lives, else the first GPU, else the CPU.
    initializer : Initializer, str or mapping of pattern to Initializer, optional
        For parameters that are not initialised; of several patterns the first that matches a name wins.
    frozen : sequence of str, Block or ParameterDict
        Parameters that no trainer moves, on purpose.

    Raises
    ------
    SpecError
        `spec` is neither a TaskSpec nor a loss.
    ValueError
        A context that does not exist.
    """

    def __init__(
        self,
        net: Any,
        spec: Any,
        trainers: Any = None,
        context: Any = None,
        initializer: Any = None,
        frozen: Any = (),
    ) -> None:
        self.logger = _logger()
        self._notices: list[str] = []
        if not isinstance(spec, TaskSpec):
            spec = self._default_spec(spec)
        self.net, self.spec = net, spec
        self.state = RunState()
        self._engine = Engine(net, spec, trainers, context, initializer, frozen, self.state, self._notice)
        self.context = self._engine.contexts
        self.history = History()
        self.plan: Plan | None = None
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0
        self._events: Events | None = None
        self._val_data: Any = None
        self._proved = False

    # ---- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        train_data: Any,
        val_data: Any = None,
        epochs: int | None = None,
        batches: int | None = None,
        event_handlers: Any = None,
    ) -> History:
        """Train for a number of epochs or batches.

        Parameters
        ----------
        train_data, val_data : DataLoader, DataIter or re-iterable of batches
            `val_data` is evaluated after each epoch.
        epochs, batches : int
            How many *more*; exactly one of them.
        event_handlers : handler or list of handlers, optional
            Added to the defaults: stopping, metrics, validation, logging and progress bars. A handler of the
            same name takes the place of one of the last three.

        Returns
        -------
        History
            Every figure's values, one per epoch of this fit.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit; nothing has moved.
        ValueError
            `epochs` and `batches` both or neither, or a handler that cannot work here.
        RuntimeError
            A handler of a running fit calls it.
        """
        self._check_idle("fit")
        self._begin(train_data, val_data, epochs, batches, event_handlers)
        with self._running():
            while not self.state.stopped:
                self.history.open_row()
                self._engine.stages["train"].reset()
                if not self._epoch(
                    rewound(train_data), length(train_data), self.fit_batch, TRAIN, self.state
                ):
                    raise_problems(no_batch("train_data", self.state.epoch, self._proved))
                self._emit(TRAIN.end)
                self.state.epoch += 1
                if one_shot(train_data):
                    self.state.stop("the data is exhausted")
        return self.history

    def fit_batch(self, batch: Any) -> Any:
        """Train on one batch, as the loader yielded it; may be overridden.

        The first batch of a fit is the check: it goes on to the update only if everything fits.

        Returns
        -------
        Result
            The outputs and loss values per device.
        """
        if self._proved:
            stage = self._engine.stages["train"]
            result = stage.run(self._engine.feed("train").split(batch), self.state)
            self._engine.update(result)
            stage.measure(result)
        else:
            result = self._prove(batch)
            self._engine.update(result)
        return result

    # ---- evaluating ----------------------------------------------------------------------------------------

    def evaluate(
        self, data: Any = None, event_handlers: Any = None, batch_axis: int = 0, val_data: Any = None
    ) -> dict[str, float]:
        """Measure losses and metrics on `data`.

        Parameters
        ----------
        data : DataLoader, DataIter or re-iterable of batches
            `val_data` is another name for it, which Gluon's ValidationHandler uses.
        event_handlers : handler or list of handlers, optional
            Called at the evaluation's moments, and at ``epoch_…`` and ``batch_…`` as Gluon's Estimator does.
        batch_axis : int
            The axis of the samples in all slots.

        Returns
        -------
        dict of str to float
            The figures by name, without prefix.

        Raises
        ------
        SpecError, DataError
            The data or the net does not fit the spec.
        """
        data, running = val_data if data is None else data, self._events
        stage, batches = self._engine.stages["evaluate"], peeked(data, "data")[1]
        with self._listening(event_handlers, batch_axis):
            stage.reset()
            self._epoch(batches, length(data), self.evaluate_batch, EVALUATE, RunState())
            figures = stage.figures()
            self._emit(EVALUATE.end, figures=figures)
        if running is not None and self.history.epochs:  # before the first epoch there is no row for them
            self.history.record({f"val_{name}": value for name, value in figures.items()})
        return figures

    def evaluate_batch(self, batch: Any) -> Any:
        """Measure one batch, as the loader yielded it; may be overridden."""
        return self._engine.evaluate(batch, self.batch_axis)

    def predict(self, data: Any) -> dict[str, Any]:
        """Run the net on `data`.

        Parameters
        ----------
        data : list, loader, tuple, dict or array
            A list or loader is many batches; a tuple, a dict or an array is one. Labels may be missing.

        Returns
        -------
        dict of str to numpy.ndarray
            Every output by name, the batches joined; a list of arrays where their shapes differ or an output
            has no batch axis.

        Raises
        ------
        SpecError, DataError
            The data or the net does not fit the spec.
        """
        one = isinstance(data, (tuple, Mapping)) or hasattr(data, "shape") or not hasattr(data, "__iter__")
        batches: Iterator[Any] = iter([data]) if one else peeked(data, "data")[1]
        return gathered([piece for batch in batches for piece in self._engine.predict(batch)])

    def check(self, data: Any, val_data: Any = None) -> Plan:
        """Prove that spec, net, data and trainers fit, and return the plan; nothing moves.

        A net that is not initialised is; MXNet's random generator may advance, NumPy's and Python's do not.

        Raises
        ------
        SpecError, DataError, TrainerError
            Everything that does not fit.
        RuntimeError
            A handler of a running fit calls it.
        """
        self._check_idle("check")
        with undisturbed():
            self._engine.renew()
            proof = prove(self._engine, peeked(data, "data")[0], val_data)
            self.plan = make_plan(self._engine, proof, self._notices)
            self._engine.renew()
        return self.plan

    # ---- what handlers read --------------------------------------------------------------------------------

    def figures(self, stage: str = "train") -> dict[str, float]:
        """Return the running figures of "train" or "evaluate", with prefix; this waits for the engine."""
        prefix = "train" if stage == "train" else "val"
        return {f"{prefix}_{name}": value for name, value in self._engine.stages[stage].figures().items()}

    def direction(self, figure: str) -> str | None:
        """Return whether a figure is better "min" or "max"; None where it is not known."""
        stage, _, name = figure.partition("_")
        return (
            self._engine.direction("train" if stage == "train" else "evaluate", name)
            if stage in ("train", "val")
            else None
        )

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates: ``lr``, or ``lr_<trainer>`` where there are several."""
        return self._engine.bound_trainers().learning_rates()

    @property
    def trainers(self) -> Mapping[str, Any]:
        """The trainers by name.

        Raises
        ------
        TrainerError
            They cannot be built, or do not cover the parameters.
        """
        return self._engine.bound_trainers()

    @property
    def trainer(self) -> Any:
        """The trainer, for handlers that know only one; for several, one that stands for all."""
        return single_trainer(self.trainers)

    @property
    def train_metrics(self) -> list[Any]:
        """The training figures as EvalMetrics: the metrics, then the objective."""
        return self._facades("train", "train")

    @property
    def val_metrics(self) -> list[Any]:
        """The validation figures as EvalMetrics: the metrics, then the objective."""
        return self._facades("evaluate", "val")

    def __repr__(self) -> str:
        return f"MultiEstimator({type(self.net).__name__}, {self.spec!r})"

    # ---- the rooms behind ----------------------------------------------------------------------------------

    def _epoch(
        self,
        batches: Iterable[Any],
        total: int | None,
        step: Callable[[Any], Any],
        moments: _Moments,
        state: RunState,
    ) -> int:
        """Pass once over the data: the same for training and evaluating, which differ by their step."""
        count = 0
        self._emit(moments.begin, batches=total)
        for batch in batches:
            state.batch = count
            self._emit(moments.batch_begin, batch=batch)
            try:
                result = step(batch)
            except UserCodeError as error:
                error.at(state.place if state is self.state else f"evaluating, batch {count + 1}")
                raise
            count += 1
            state.step += 1
            state.samples += result.batch.samples
            self._emit_result(moments.batch_end, batch, result)
            if state.stopped:
                break
        return count

    def _prove(self, batch: Any) -> Any:
        proof = prove(self._engine, batch, self._val_data)
        handlers = () if self._events is None else self._events.handlers  # none in a loop of the user's own
        check_monitors(self._engine, handlers, self._val_data is not None)
        self.plan = make_plan(self._engine, proof, self._notices)
        self._proved, self._val_data = True, None
        return proof.train

    def _begin(self, train_data: Any, val_data: Any, epochs: Any, batches: Any, event_handlers: Any) -> None:
        if (epochs is None) == (batches is None):
            raise ValueError(
                f"fit was given epochs={epochs!r} and batches={batches!r}; "
                "give exactly one: epochs=10, or batches=1000"
            )
        self.max_epoch = None if epochs is None else whole_number("epochs", epochs)
        self.max_batch = None if batches is None else whole_number("batches", batches)
        once = self.max_epoch == 1 or (self.max_epoch is None and val_data is None)
        problems = loader_problems("train_data", train_data, once or self.max_epoch is None)
        problems += [] if val_data is None else loader_problems("val_data", val_data, once)
        raise_problems(problems)
        events, self._val_data = self._prepared(event_handlers, val_data)
        self._engine.renew()
        self._proved = False
        self.history = History()
        self.state.start()
        self._events = events

    def _prepared(self, event_handlers: Any, val_data: Any) -> tuple[Events, Any]:
        """Return the handlers, and the first batch that they will evaluate, in a list; None without any.

        It is read before the training begins: both may read from one and the same DataIter.
        """
        first: list[Any] = []
        with undisturbed():
            if val_data is not None and one_shot(val_data):
                batch, val_data = peeked(val_data, "val_data")
                first = [batch]
            events = Events(self, with_defaults(event_handlers, val_data))
            found = validation_data(events.handlers)  # a ValidationHandler of the user's own brings it along
            if found is not None and not first:
                raise_problems(loader_problems("val_data", found, once=False))
                first = [peeked(found, "val_data")[0]]
        return events, first or None

    def _check_idle(self, what: str) -> None:
        if self._events is not None:
            raise RuntimeError(
                f"{what} was called by an event handler, in the middle of a run; call it before or after"
            )

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Tell the handlers that a fit begins, and that it ends, however it does."""
        try:
            self._emit("train_begin")
            try:
                yield
            except BaseException as error:
                self.state.stop(type(error).__name__)
                try:
                    self._emit("train_end")
                except HandlerError as second:  # often a consequence; the first error is the one to be seen
                    self.logger.error("%s", second)
                raise
            self._emit("train_end")
        finally:
            self._events = None

    @contextmanager
    def _listening(self, event_handlers: Any, batch_axis: int) -> Iterator[None]:
        """Let those hear the evaluation who should: the given handlers, the running fit's, or else a bar."""
        before = self._events, self.batch_axis
        if event_handlers is not None:
            self._events = Events(self, echoing(event_handlers))
        elif self._events is None:
            self._events = Events(self, ProgressBar())
        self.batch_axis = batch_axis
        try:
            yield
        finally:
            self._events, self.batch_axis = before

    def _emit(self, moment: str, **facts: Any) -> None:
        if self._events is not None:
            self._events.emit(moment, **facts)

    def _emit_result(self, moment: str, batch: Any, result: Any) -> None:
        if self._events is not None and self._events.listens(moment):
            self._events.emit(moment, batch=batch, **result.views())

    def _facades(self, stage: str, prefix: str) -> list[Any]:
        names = [measure.term.key for measure in self._engine.measures[stage]]
        names += ["loss"] if self._engine.stages[stage].spec.terms else []
        return [FigureMetric(prefix, name, lambda: self.figures(stage)) for name in names]

    def _notice(self, text: str) -> None:
        if text not in self._notices:
            self._notices.append(text)
            self.logger.info(text)

    def _default_spec(self, loss: Any) -> TaskSpec:
        if not callable(loss) or isinstance(loss, type):
            raise SpecError(
                f"spec is {loss!r:.80}; give a TaskSpec, or one loss for a net with one input, one output "
                "and one label"
            )
        spec, notices = default_spec(loss)
        for notice in notices:
            self._notice(notice)
        return spec


def _logger() -> logging.Logger:
    logger = logging.getLogger("multifit")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():  # nobody configured logging: a beginner wants to see what happens
        logger.addHandler(logging.StreamHandler(sys.stdout))
    return logger
