"""Task files: Python modules that say what to train, as functions that get each other's results by name.

A task file holds functions ``net``, ``spec`` and ``data`` and, where it wants, ``trainers``, ``initializer``
and ``frozen``, which return what `MultiEstimator` takes under these names, and ``pictures``. As with pytest's
fixtures, a parameter's name says what a function needs: ``def data(net)`` gets what ``net()`` returned. Each
function is called once. Values at the top of the module (``epochs = 20``) are its settings.

Two more are for ``multifit predict``: ``inputs(arguments)`` makes what `MultiEstimator.predict` takes of what
the command line gives (a list of paths or texts), and ``show(outputs)`` returns, for each of them, a text or
a matplotlib figure that says what the net's outputs mean.
"""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping

from .errors import names, suggest
from .settings import change_setting, parse_setting, restored, settings_of

__all__ = ["Resolver", "TaskFile", "UsageError"]

NEEDED = ("net", "spec", "data")
OPTIONAL = ("trainers", "initializer", "frozen", "pictures", "inputs", "show")


class UsageError(ValueError):
    """What was asked for on the command line, or the task file itself, cannot be used."""


class TaskFile:
    """A task file that was read and executed.

    Parameters
    ----------
    path : str or path
        The file; its folder goes on ``sys.path``, so that it can import its neighbours as any script can.

    Attributes
    ----------
    path : Path
        The file.
    module : module
        The module, executed. An exception in its own code passes through.
    functions : dict of str to function
        Those of its functions that mean something here, by name: `NEEDED` and such of `OPTIONAL` as it has.

    Raises
    ------
    UsageError
        There is no such file, it is no Python module, or it lacks ``net``, ``spec`` or ``data``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.module = _execute(self.path)
        self.functions = self._find_functions()

    @property
    def settings(self) -> dict[str, Any]:
        """The module's settings: its values that are plain, such as numbers and strings, and no constants."""
        return settings_of(self.module)

    def set(self, assignments: Iterable[str]) -> None:
        """Change settings.

        Parameters
        ----------
        assignments : iterable of str
            Each ``name=value``; the value is read as the type that the setting has.

        Raises
        ------
        UsageError
            No equals sign, no such setting, or a value that is not of the setting's type.
        """
        for assignment in assignments:
            name, equals, text = (part.strip() for part in assignment.partition("="))
            if not equals:
                raise UsageError(f'cannot read the setting "{assignment}": write name=value')
            self._change(name, text, parse_setting)

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Set settings to what they were in an earlier run.

        Parameters
        ----------
        settings : mapping of str to value
            As JSON has kept them.

        Raises
        ------
        UsageError
            The file has no such setting any more, or it cannot have that value any more.
        """
        for name, value in settings.items():
            self._change(name, value, restored)

    def _change(self, name: str, value: Any, read: Callable[[Any, Any], Any]) -> None:
        if name not in self.settings:
            raise UsageError(
                f'{self.path} has no setting "{name}"{suggest(name, self.settings)}; '
                f"it has {names(self.settings)}"
            )
        try:
            change_setting(self.module, name, read(value, self.settings[name]))
        except ValueError as error:
            raise UsageError(f"cannot set {name} of {self.path} to {value!r}: {error}") from None

    def _find_functions(self) -> dict[str, Callable[..., Any]]:
        there = vars(self.module)
        defined = {name: there[name] for name in NEEDED + OPTIONAL if name in there}
        functions = [name for name, value in there.items() if inspect.isroutine(value)]
        for name in NEEDED:
            if name not in defined:
                raise UsageError(
                    f'{self.path} has no function "{name}"{suggest(name, functions)}: '
                    f"a task file needs {names(NEEDED)} and may have {names(OPTIONAL)}"
                )
        for name, value in defined.items():
            if not inspect.isroutine(value):
                found = type(value).__name__
                raise UsageError(f'"{name}" of {self.path} must be a function, not of type {found}')
        return defined


class Resolver:
    """Call functions with what they name: the result of another function, or a value that is there.

    Parameters
    ----------
    functions : mapping of str to function
        By the name of what each makes.
    values : mapping of str to object
        What is there already; a function of the same name comes first.
    path : str or path
        Where the functions come from, for messages.

    Raises
    ------
    UsageError
        A function asks for a name that nobody provides and has no default for it, or functions need each
        other in a circle. All is checked before any function is called.
    """

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], values: Mapping[str, Any], path: str | Path
    ) -> None:
        self._functions = dict(functions)
        self._values = {name: value for name, value in values.items() if name not in functions}
        self._path = path
        for name, function in self._functions.items():
            self._check_names(name, function)
        for name in self._functions:
            self._check_circle([name])

    def __getitem__(self, name: str) -> Any:
        """Return what is called `name`, made now if it was not yet."""
        if name not in self._values:
            self._values[name] = self._call(self._functions[name])
        return self._values[name]

    def _call(self, function: Callable[..., Any]) -> Any:
        by_place, by_name = [], {}
        for parameter in _parameters(function):
            if self._provided(parameter.name):
                value = self[parameter.name]
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    by_place.append(value)
                else:
                    by_name[parameter.name] = value
        return function(*by_place, **by_name)

    def _provided(self, name: str) -> bool:
        return name in self._functions or name in self._values

    def _check_names(self, name: str, function: Callable[..., Any]) -> None:
        valid = [*self._functions, *self._values]
        for parameter in _parameters(function):
            if parameter.default is parameter.empty and not self._provided(parameter.name):
                raise UsageError(
                    f'{name}() of {self._path} asks for "{parameter.name}", which nobody provides'
                    f"{suggest(parameter.name, valid)}; there are {names(valid)}"
                )

    def _check_circle(self, way: list[str]) -> None:
        for parameter in _parameters(self._functions[way[-1]]):
            if parameter.name in way:
                circle = " -> ".join([*way[way.index(parameter.name) :], parameter.name])
                raise UsageError(f"functions of {self._path} need each other in a circle: {circle}")
            if parameter.name in self._functions:
                self._check_circle([*way, parameter.name])


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind not in several]


def _execute(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file {path}" if not path.exists() else f"{path} is not a file")
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not a Python module: {error}") from None
    module = types.ModuleType(f"multifit_task_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.path.insert(0, str(path.resolve().parent))
    # Known by its name, so that data loaders can send its functions to their worker processes.
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module
