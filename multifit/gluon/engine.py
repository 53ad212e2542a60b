"""Everything behind the estimator that knows MXNet: a net, its parameters, its trainers and its stages."""

from __future__ import annotations

from typing import Any, Callable, Mapping

from ..errors import Problem, SpecError, TrainerError, raise_problems
from ..spec import TaskSpec
from ..spec.names import listed
from ..stages import STAGES
from . import metrics as devices
from .compat import mx
from .data.arrays import joined, to_numpy
from .data.batch_splitter import BatchSplitter
from .data.devices import resolve_context
from .execution.result import Result
from .execution.stage import Stage
from .metrics.stage_metric import StageMetric, as_metric
from .optim.gradients import is_fresh
from .optim.initialization import initialize
from .optim.parameters import named_parameters, trainable
from .optim.trainer_binding import DEFAULT, bind_trainers
from .optim.trainers import Trainers
from .precision.precisions import precision_of

__all__ = ["Engine"]


class Engine:
    """A net and a spec on devices.

    Parameters
    ----------
    net : Block
        The user's net.
    spec : TaskSpec
        What is routed where.
    trainers, context, initializer, frozen
        As :class:`multifit.MultiEstimator` takes them.
    state : RunState
        Where the run stands, for weights that are functions of it.
    notice : callable
        Told each default that is used.
    precision : str
        As :class:`multifit.MultiEstimator` takes it.

    Raises
    ------
    ValueError
        A context that does not exist, an unknown precision, or one that the devices do not support.
    """

    def __init__(
        self,
        net: Any,
        spec: TaskSpec,
        trainers: Any,
        context: Any,
        initializer: Any,
        frozen: Any,
        state: Any,
        notice: Callable[[str], None],
        precision: str = "float32",
    ) -> None:
        if not isinstance(net, mx.gluon.Block):
            raise SpecError(f"net is {net!r:.80}, which is no gluon.Block; give the net itself, an instance")
        self.net, self.spec, self.frozen, self.state, self.notice = net, spec, frozen, state, notice
        self.parameters = named_parameters(net, {term.key: term.spec.fn for term in spec.terms})
        self.contexts = resolve_context(context, list(self.parameters.values()))
        self.precision = precision_of(precision, self.contexts)
        self.trainers: Trainers | None = None
        self._declared, self._initializer = trainers, initializer
        self._initialized = False
        self.measures = _measures(spec)
        self.seen: dict[str, list[Any]] = {name: [] for name in STAGES}  # forms of batches, for exporting
        self.renew()

    def renew(self, hooks: Any = None) -> None:
        """Forget everything that was bound, traced and measured: the net may have changed since.

        Parameters
        ----------
        hooks : TrainingHooks, optional
            What handlers change on a batch's way through training.
        """
        self.hooks = hooks
        for measure in (measure for measures in self.measures.values() for measure in measures):
            measure.renew()
        self._feeds: dict[Any, BatchSplitter] = {}
        self.stages = {
            name: Stage(self.net, spec, name, self.measures[name], self.contexts, hooks, self.precision)
            for name, spec, hooks in zip(STAGES, (self.spec, self.spec.evaluation), (hooks, None))
        }

    def feed(self, name: str, labels: bool = True, batch_axis: int = 0) -> BatchSplitter:
        """Return the feed of a stage."""
        key = (name, labels, batch_axis)
        if key not in self._feeds:
            changed = name == "train" and self.hooks is not None and self.hooks.active("change_batch")
            change = self.hooks.change_batch if changed else None
            spec = self.stages[name].spec
            self._feeds[key] = BatchSplitter(spec, self.contexts, self.notice, labels, batch_axis, change)
            if batch_axis == 0:
                self._feeds[key].signatures = self.seen[name]
        return self._feeds[key]

    def initialize(self) -> list[Problem]:
        """Initialise the net where it is not; return what is wrong with the initializer."""
        if self._initialized:
            return []
        problems = initialize(self.parameters, self.contexts, self._initializer, self.notice)
        self._initialized = not problems
        return problems

    def bind_trainers(self) -> list[Problem]:
        """Build the trainers once; return what is wrong with them."""
        if self.trainers is not None:
            return []
        if self._declared is None:
            rate = (DEFAULT.optimizer_params or {})["learning_rate"]
            self.notice(f"default trainer: {DEFAULT.optimizer}, learning rate {rate:g}, over all parameters")
        self.trainers, problems = bind_trainers(self._declared, self.parameters, self.frozen, self.contexts)
        return problems

    def bound_trainers(self) -> Trainers:
        """Return the trainers.

        Raises
        ------
        TrainerError
            They cannot be built or do not cover the parameters.
        """
        raise_problems(self.initialize() or self.bind_trainers())
        if self.trainers is None:  # pragma: no cover - problems were raised above
            raise TrainerError("the trainers could not be built")
        return self.trainers

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates; none where the trainers cannot be built, as the first batch will tell.

        Handlers ask before that, and what is wrong with spec and data is to be told along with it.
        """
        wrong = self.initialize() or self.bind_trainers()
        return {} if wrong or self.trainers is None else self.trainers.learning_rates()

    def update(self, result: Result) -> None:
        """Compute the gradients of a batch's objective on all devices, then move the parameters."""
        self.backward(result)
        self.step(result)

    def backward(self, result: Result) -> None:
        """Compute the gradients of a batch's objective, as handlers change it, on all devices."""
        if self.hooks is not None and self.hooks.active("change_objective"):
            self._change_objective(result)
        mx.autograd.backward(result.objectives)

    def step(self, result: Result) -> None:
        """Move the parameters by the gradients that are there, unless a handler holds or changes them."""
        trainers = self.bound_trainers()
        if self.hooks is not None and self.hooks.hold_update(loss=result.named()["loss"]):
            return
        for name in trainers:
            trainers.reduce(name)
        if self.hooks is not None and self.hooks.active("change_gradients"):
            trainers.check_open("where no handler can change gradients")
            self.hooks.change_gradients()
        for phase in (trainers.clip, trainers.update):
            for name in trainers:
                phase(name)

    def wait(self) -> None:
        """Wait until the device has done all its work."""
        mx.nd.waitall()

    def gradients(self) -> dict[str, dict[str, list[Any]]]:
        """Return by trainer and parameter the gradients of the last batch, one per device."""
        found: dict[str, dict[str, list[Any]]] = {}
        for trainer, held in self.bound_trainers().held.items():
            own = {name: self.parameters[name] for name in held}
            fresh = {name: p for name, p in own.items() if is_fresh(p.list_data()[0])}
            found[trainer] = {name: p.list_grad() for name, p in fresh.items()}
        return found

    def _change_objective(self, result: Result) -> None:
        views = result.named()
        with mx.autograd.record():
            # one way back into the graph, however many handlers take it: sums of gradients then come in the
            # same order whether there is a graph or, with the first batch, none
            for kind in ("pred", "loss"):
                views[kind] = {name: _passed_on(own) for name, own in views[kind].items()}
            result.objectives = self.hooks.change_objective(result.objectives, **views)

    def evaluate(self, raw: Any, batch_axis: int = 0) -> Result:
        """Measure a batch; the first one is checked.

        Raises
        ------
        SpecError, DataError
            The batch or the net does not fit the spec.
        """
        stage = self.stages["evaluate"]
        batch = self.feed("evaluate", batch_axis=batch_axis).split(raw)
        if not stage.bound:
            raise_problems(self.initialize() or stage.bind(batch))
        result = stage.run(batch, self.state)
        stage.measure(result)
        return result

    def predict(self, raw: Any) -> list[tuple[dict[str, Any], int]]:
        """Return per device the outputs as NumPy arrays, and the number of samples."""
        network = self.stages["evaluate"].network
        batch = self.feed("evaluate", labels=False).split(raw)
        raise_problems(self.initialize())
        found = []
        with self.stages["evaluate"].recording():
            for context, slots, size in zip(batch.contexts, batch.slots, batch.sizes):
                with context:
                    if network.paths is None:
                        outputs, problems = network.bind(slots)
                        raise_problems(problems)
                    else:
                        outputs = network(slots)
                found.append((outputs, size))
        return [({name: to_numpy(array) for name, array in outputs.items()}, size) for outputs, size in found]

    def figure_names(self, name: str) -> list[str]:
        """Return the names of a stage's figures without prefix; a metric's key where it has not told them."""
        stage = self.stages[name]
        objective = ["loss"] if stage.spec.terms else []
        return (
            objective
            + [f for t in stage.spec.terms for f in t.figures]
            + [f for m in stage.measures for f in stage.names(m)]
        )

    def direction(self, name: str, figure: str) -> str | None:
        """Return "min" or "max" for a figure of a stage, or None where it is not known."""
        stage = self.stages[name]
        for measure in stage.measures:
            if figure == measure.term.key or figure.startswith(measure.term.key + "."):
                return measure.term.spec.mode or devices.direction(measure.metric)
        return "min" if figure == "loss" or any(figure in term.figures for term in stage.spec.terms) else None

    def unreached(self) -> list[Problem]:
        """Return what is wrong with parameters whose shape the forward pass has not told."""
        held = [name for names in (self.trainers.held.values() if self.trainers else ()) for name in names]
        deferred = [name for name in held if self.parameters[name]._deferred_init]
        if not deferred:
            return []
        shown = ", ".join(f'"{name}"' for name in deferred[:6]) + (" …" if len(deferred) > 6 else "")
        message = (
            f"the forward pass never reached {shown}: their shape is not known, no trainer can move them; "
            f'take the layer out of the net, or say frozen=["{deferred[0].rpartition(".")[0]}.*"]'
        )
        return [Problem("trainer", message)]

    def cold(self) -> list[str]:
        """Return the trainable parameters that no trainer holds."""
        held = {name for names in (self.trainers.held.values() if self.trainers else ()) for name in names}
        return [name for name in trainable(self.parameters) if name not in held]


def _passed_on(arrays: list[Any]) -> list[Any]:
    return [None if array is None else mx.nd.identity(array) for array in arrays]


def gathered(pieces: list[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Join the outputs of many devices and batches by name."""
    names = pieces[0][0] if pieces else {}
    return {
        name: joined([outputs[name] for outputs, _ in pieces], [size for _, size in pieces]) for name in names
    }


def _measures(spec: TaskSpec) -> Mapping[str, list[StageMetric]]:
    """Return each stage's metrics; an EvalMetric that serves twice is copied, so that its sums do not mix."""
    seen: set[int] = set()
    found: dict[str, list[StageMetric]] = {}
    for name, declared in zip(STAGES, (spec, spec.evaluation)):
        found[name] = []
        for term in declared.metric_terms:
            if name in listed(term.spec.stage) or (name == "evaluate" and spec.evaluate is not None):
                metric = as_metric(term)
                metric = devices.copy_metric(metric) if id(metric) in seen else metric
                seen.add(id(metric))
                found[name].append(StageMetric(term, metric))
    return found
