"""Converts what is declared for a Gluon net into what a module would declare, and its values back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...distributed.log_once import LogOnce
from ...engines import Setup
from ...gluon.data.devices import CPU
from ...gluon.model import Model, default_spec
from ...gluon.optim.parameters import named_parameters
from ...spec import TaskSpec
from ...spec.terms import Term, changed
from ...utils.errors import Problem, SpecError, raise_problems
from ..devices import device_of
from .losses import BridgedLoss, as_number
from .metrics import converted_metrics
from .module import BridgedNet, Forward
from .parameters import Held
from .trainers import converted_trainers


def converted(setup: Setup, log_once: LogOnce) -> tuple[Setup, Bridge]:
    """Return what would be declared for a module in place of a Gluon net, and the bridge between both.

    Raises SpecError for a net or a loss that cannot become a graph, or whose operators have no translation,
    and TrainerError for trainers and parameters that have no counterpart.
    """
    spec = setup.spec if isinstance(setup.spec, TaskSpec) else default_spec(setup.spec, log_once)
    model = Model(setup.net, spec, CPU, setup.initializer, "float32", log_once)
    bridge = Bridge(model, spec, log_once)
    trainers, frozen, problems = converted_trainers(
        setup.trainers, model.parameters, setup.frozen, bridge.parameter, log_once
    )
    spec = bridge.converted_spec(spec, problems)
    raise_problems(problems)
    fields = {"net": bridge.module, "spec": spec, "trainers": trainers, "frozen": frozen}
    return replace(setup, **fields, context=device_of(setup.context), initializer=None), bridge


class Bridge:
    """A Gluon net and the module that is trained in its place.

    Between sessions, both have the same values: :meth:`read` takes those of the Gluon net, which may have
    been loaded, and :meth:`write_back` gives them back; :meth:`publish` does what is needed. `net` is the
    Gluon net, `model` has its parameters and those of its losses, `spec` is as it was declared, and `module`
    is the module.
    """

    def __init__(self, model: Model, spec: TaskSpec, log_once: LogOnce) -> None:
        self.net, self.model, self.spec, self._log_once = model.net, model, spec, log_once
        self._tensors: dict[Any, nn.Parameter] = {}
        named = named_parameters(model.net, {})
        self.module = BridgedNet(model.net, named, self._tensors, self._initialise)
        self._held: list[Held] = [self.module.held]
        self._sessions = 0
        self._written: Any = None  # what the values were when both were the same

    def parameter(self, tensor: Tensor) -> Any:
        """Return Gluon's parameter whose values a tensor holds."""
        return next(parameter for parameter, each in self._tensors.items() if each is tensor)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Publish the values before and after the outermost block; raises SpecError as :meth:`read` does."""
        if not self._sessions:
            self.model.check_parameters()
            self.publish()
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                self.write_back()

    def publish(self) -> None:
        """Give both the current values: within a session, those of the module.

        Outside, those of Gluon's parameters count, unless the module's have changed since.
        """
        if self._sessions or self._written not in (None, self._versions()):
            self.write_back()
        else:
            self._take()

    def _versions(self) -> list[Any]:
        """Return what changes if a value of the module does."""
        tensors = (each for held in self._held for each in held.tensors())
        return [None if is_lazy(each) else (each.data_ptr(), each._version) for each in tensors]

    def _refresh(self) -> None:
        if self._written != self._versions():
            self.write_back()

    def read(self) -> None:
        """Take the values of Gluon's parameters; raises SpecError if the net has other ones by now."""
        self.model.check_parameters()
        self._take()

    def _take(self) -> None:
        for held in self._held:
            held.read()
        self._written = self._versions()

    def write_back(self) -> None:
        """Copy parameters and running statistics to the Gluon net and its losses; waits for the device."""
        for held in self._held:
            held.write_back()
        self._written = self._versions()

    def converted_spec(self, spec: TaskSpec, problems: list[Problem], evaluates: bool = False) -> TaskSpec:
        """Return a TaskSpec whose functions take tensors; what is wrong is added to the problems."""
        terms = tuple(self._converted_term(term, problems) for term in spec.terms)
        metrics = converted_metrics(spec, problems)
        forward: Callable[..., Any] | None = spec.forward
        if forward is not None:
            forward = Forward(self.module, forward, evaluates, self._refresh, self._log_once)
        evaluate = None
        if spec.evaluate is not None:
            evaluate = self.converted_spec(spec.evaluate, problems, evaluates=True)
        return changed(
            spec,
            terms=terms,
            losses=MappingProxyType({term.key: term.spec for term in terms}),
            metric_terms=metrics,
            metrics=MappingProxyType({metric.key: metric.spec for metric in metrics}),
            forward=forward,
            evaluate=evaluate,
        )

    def _converted_term(self, term: Term, problems: list[Problem]) -> Term:
        fn: Any = term.spec.fn
        if isinstance(fn, nn.Module):
            return term
        if fn is None:  # the net returns the loss
            return replace(term, spec=replace(term.spec, fn=as_number))
        try:
            return self.with_function(term, fn)
        except SpecError as error:
            problems += error.problems
            return term

    def with_function(self, term: Term, fn: Any) -> Term:
        """Return a term with a loss of Gluon's as a module; raises SpecError if it cannot become one."""
        named = replace(term, spec=replace(term.spec, fn=fn))
        loss = BridgedLoss(named, self._tensors, self._initialise)
        self._held.append(loss.held)
        return replace(term, spec=replace(term.spec, fn=loss))

    def _initialise(self) -> None:
        raise_problems(self.model.initialize())
        for held in self._held:
            held.read()
