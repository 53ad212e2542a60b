"""MultiEstimator: the loop, the same for every net."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping

from ..errors import SpecError
from ..events import EVALUATION_EVENTS, TRAINING_EVENTS, PassEvents, TrainingHooks
from ..gluon.data.loaders import batch_count, peek_first
from ..gluon.data.seeding import preserve_rng
from ..gluon.defaults import default_spec
from ..gluon.engine import Engine, gathered
from ..gluon.validation.dry_run import dry_run, make_plan
from ..history import History
from ..plan import Plan
from ..spec import TaskSpec
from ..state import RunState
from .fit_setup import check_loaders, limits, prepared, tell_threads
from .handler_runner import HandlerRunner
from .log_once import Notices, get_logger
from .loop import Loop
from .tools import Tools

__all__ = ["MultiEstimator"]


class MultiEstimator(Loop, Tools):
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
    precision : {"float32", "bfloat16"}
        The precision of the net's convolutions and dense layers in training, evaluation and prediction.
        "bfloat16" needs a hybridized net and a CPU that supports it. Parameters, gradients, losses, figures
        and what `predict` returns and `export` writes are always float32.

    Raises
    ------
    SpecError
        `spec` is neither a TaskSpec nor a loss.
    ValueError
        A context that does not exist, an unknown precision, or one that the devices do not support.
    """

    def __init__(
        self,
        net: Any,
        spec: Any,
        trainers: Any = None,
        context: Any = None,
        initializer: Any = None,
        frozen: Any = (),
        precision: str = "float32",
    ) -> None:
        self.logger = get_logger()
        self._notices = Notices(self.logger)
        self.net = net
        self.spec = spec if isinstance(spec, TaskSpec) else self._default_spec(spec)
        self.state = RunState()
        self._engine = Engine(
            net, self.spec, trainers, context, initializer, frozen, self.state, self._notices, precision
        )
        if self._engine.precision.rules is not None:
            self._notices(self._engine.precision.description)
        self.context = self._engine.contexts
        self.history = History()
        self.plan: Plan | None = None
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0
        self._audience = HandlerRunner(self)
        self._val_data: Any = None
        self._proved = False
        self._hooks: TrainingHooks | None = None
        self._epoch_over = True
        self._order: dict[str, Any] = {}

    # ---- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        train_data: Any,
        val_data: Any = None,
        epochs: int | None = None,
        batches: int | None = None,
        event_handlers: Any = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> History:
        """Train for a number of epochs or batches.

        Parameters
        ----------
        train_data, val_data : DataLoader, DataIter or re-iterable of batches
            `val_data` is evaluated after each epoch.
        epochs, batches : int
            How many *more*; exactly one of them.
        event_handlers : handler or list of handlers, optional
            Added to the defaults: stopping, metrics, validation, interrupts, logging and progress bars. A
            handler of the same name takes the place of one of the last four.
        resume : path, optional
            A run's folder, a folder of checkpoints or one checkpoint: the fit that wrote them goes on from
            the newest that is whole, mid-epoch too, as if it had never ended. Called as that fit was, with
            the same data; `epochs` and `batches` count from that fit's begin. Where there is no checkpoint
            yet, the fit begins anew.

        Returns
        -------
        History
            Every figure's values, one per epoch of this fit.

        Raises
        ------
        SpecError, DataError, TrainerError
            Something does not fit; nothing has moved. With `resume` also: the spec, the net or the trainers
            are not those of the checkpoint.
        ValueError
            `epochs` and `batches` both or neither, a handler that cannot work here, or a `resume` where all
            checkpoints are damaged.
        RuntimeError
            A handler of a running fit calls it.
        """
        self._check_idle("fit")
        self.max_epoch, self.max_batch = limits(epochs, batches)
        check_loaders(train_data, val_data, self.max_epoch)
        tell_threads(self._notices, train_data)
        events, self._val_data = prepared(self, event_handlers, val_data)
        hooks = TrainingHooks(events)
        self._hooks = hooks if hooks.active() else None
        self._engine.renew(self._hooks)
        self._proved, self.history, self._epoch_over = False, History(), True
        self.state.start()
        with hooks.around("fit"), self._audience.fit(events):
            if resume is not None:
                self._train_rest(train_data, self._go_on(resume))
            while not self.state.stopped:
                self._train_epoch(train_data)
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
            self._engine.wait()
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
            Called at the evaluation's events, and at ``epoch_…`` and ``batch_…`` as Gluon's Estimator does.
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
        data = val_data if data is None else data
        turn = self.state.step if self._audience.listening else None  # of an evaluation within a fit
        stage, batches = self._engine.stages["evaluate"], peek_first(data, "data", turn)[1]
        axis, self.batch_axis = self.batch_axis, batch_axis
        try:
            with self._audience.evaluation(event_handlers), self._around("evaluation"):
                stage.reset()
                self._epoch(batches, batch_count(data), self.evaluate_batch, EVALUATION_EVENTS, RunState())
                figures = stage.figures()
                self._audience.tell(EVALUATION_EVENTS.end, figures=figures)
        finally:
            self.batch_axis = axis
        if (
            self._audience.listening and self.history.epochs
        ):  # before the first epoch there is no row for them
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
        batches: Iterator[Any] = iter([data]) if one else peek_first(data, "data")[1]
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
        with preserve_rng():
            self._engine.renew()
            proof = dry_run(self._engine, peek_first(data, "data")[0], val_data)
            self.plan = make_plan(self._engine, proof, self._notices)
            self._engine.renew()
        return self.plan

    def __repr__(self) -> str:
        return f"MultiEstimator({type(self.net).__name__}, {self.spec!r})"

    # ---- the rooms behind ----------------------------------------------------------------------------------

    def _check_idle(self, what: str) -> None:
        if self._audience.listening:
            raise RuntimeError(
                f"{what} was called by an event handler, in the middle of a run; call it before or after"
            )

    def _shown(self, events: PassEvents) -> bool:
        """Whether outputs and losses are looked at: by a handler, or by a step of the user's own."""
        step = "fit_batch" if events is TRAINING_EVENTS else "evaluate_batch"
        own = getattr(type(self), step) is not getattr(MultiEstimator, step)
        return own or self._audience.looks(events)

    def _default_spec(self, loss: Any) -> TaskSpec:
        if not callable(loss) or isinstance(loss, type):
            raise SpecError(
                f"spec is {loss!r:.80}; give a TaskSpec, or one loss for a net with one input, one output "
                "and one label"
            )
        spec, notices = default_spec(loss)
        for notice in notices:
            self._notices(notice)
        return spec
