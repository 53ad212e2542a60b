"""Calling the handlers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Callable

from ..errors import DataError, SpecError, TrainerError, UserCodeError
from .moments import CHANGES, MOMENTS, implements, priority_of
from .running import Running
from .vetting import name_of, vetted

__all__ = ["Events", "HandlerError"]

_STOPPING = ("batch_end", "epoch_end")  # a true answer to these stops the run


class HandlerError(UserCodeError):
    """An event handler raised; the original exception is the ``__cause__``."""


class Events:
    """Calls handlers at the moments that they implement, in the order of their priorities.

    Parameters
    ----------
    estimator : Running
        Handed to every handler.
    handlers : object or iterable of object, optional
        Event handlers: any objects with at least one method named as in `MOMENTS` or `CHANGES`. A method is
        called as ``handler.epoch_end(estimator, **facts)`` with those of the moment's facts that it takes.

    Raises
    ------
    ValueError
        Some of the handlers cannot be used. The message names all of these.
    """

    def __init__(self, estimator: Running, handlers: object = None) -> None:
        self.handlers = sorted(vetted(handlers), key=priority_of)
        self._estimator = estimator
        self._reached: list[object] = []
        self._calls = {
            moment: [
                (handler, *_call(handler, moment)) for handler in self.handlers if implements(handler, moment)
            ]
            for moment in MOMENTS + CHANGES
        }

    def listens(self, moment: str) -> bool:
        """Whether any handler is called at `moment`."""
        return bool(self._calls[moment])

    def takes(self, moment: str, *facts: str) -> bool:
        """Whether any handler of `moment` takes one of these facts."""
        return any(names is None or not names.isdisjoint(facts) for _, _, names in self._calls[moment])

    def emit(self, moment: str, **facts: Any) -> bool:
        """Call all handlers that implement `moment`.

        Parameters
        ----------
        moment : str
            One of `MOMENTS`.
        **facts
            What is to be told at this moment: the batch, the figures …

        Returns
        -------
        bool
            Whether a handler answered ``batch_end`` or ``epoch_end`` with something true: the run is to stop,
            and its state has the handler's name as the reason if the handler gave no better one.

        Raises
        ------
        HandlerError
            A handler raised. Its own exception is the ``__cause__``; multifit's errors, and what is no
            Exception (KeyboardInterrupt), pass as they are.
        """
        stop = False
        for handler, call, takes in self._calls[moment]:
            if self._ask(moment, handler, call, takes, facts) and moment in _STOPPING:
                self._estimator.state.stop(name_of(handler))
                stop = True
        return stop

    def begin(self) -> None:
        """Call all handlers that implement ``train_begin``; only those that it reaches hear the end."""
        self._reached = [handler for handler in self.handlers if not implements(handler, "train_begin")]
        for handler, ask in self.askers("train_begin"):
            self._reached.append(handler)
            ask()

    def close(self) -> None:
        """Call all handlers that implement ``train_end``, those behind one that raises too.

        Raises
        ------
        HandlerError
            The first of those that were raised.
        """
        errors = []
        for handler, ask in self.askers("train_end"):
            try:
                if any(handler is reached for reached in self._reached):
                    ask()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def askers(self, moment: str) -> Iterator[tuple[object, Callable[..., Any]]]:
        """Yield each handler of `moment` with a function that calls it with facts, and returns its answer.

        The function raises as :meth:`emit` does.
        """
        for handler, call, takes in self._calls[moment]:
            yield handler, partial(self._asked, moment, handler, call, takes)

    def named(self, handler: object, moment: str, error: Exception) -> HandlerError:
        """Return what says which handler raised `error`, and when."""
        where = f"{name_of(handler)} failed in {moment} ({self._estimator.state.place})"
        return HandlerError(f"{where}: {type(error).__name__}: {error}")

    def _asked(
        self,
        moment: str,
        handler: object,
        call: Callable[..., Any],
        takes: frozenset[str] | None,
        **facts: Any,
    ) -> Any:
        return self._ask(moment, handler, call, takes, facts)

    def _ask(
        self,
        moment: str,
        handler: object,
        call: Callable[..., Any],
        takes: frozenset[str] | None,
        facts: Mapping[str, Any],
    ) -> Any:
        try:
            if takes is None:
                return call(self._estimator, **facts)
            return call(self._estimator, **{name: facts[name] for name in takes if name in facts})
        except (DataError, SpecError, TrainerError, UserCodeError):
            raise  # these say already what is wrong, or where
        except Exception as error:
            raise self.named(handler, moment, error) from error


def _call(handler: object, moment: str) -> tuple[Callable[..., Any], frozenset[str] | None]:
    """Return the method and the names of the facts that it takes; None for all.

    ``**facts`` takes all; ``**_``, by its name, is for whoever calls the method and is not looked at.
    """
    method = getattr(handler, moment)
    function = getattr(method, "__func__", None)
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):  # as almost all are
        return method, _of_code(function.__code__)
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # a compiled function may have no signature
        return method, None
    rest = [parameter.name for parameter in parameters if parameter.kind is parameter.VAR_KEYWORD]
    if rest and not rest[0].startswith("_"):
        return method, None
    return method, frozenset(parameter.name for parameter in list(parameters)[1:])


def _of_code(code: CodeType) -> frozenset[str] | None:
    """Return the same of a plain method; inspecting its signature takes twenty times as long."""
    named = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARKEYWORDS:
        rest = code.co_varnames[named + bool(code.co_flags & inspect.CO_VARARGS)]
        if not rest.startswith("_"):
            return None
    # behind self and the estimator, which *args may take; what is named behind these stands next
    return frozenset(code.co_varnames[2 : code.co_argcount] + code.co_varnames[code.co_argcount : named])
