"""Task files: Python modules that declare a training, as functions that get each other's results by name.

A task file has the functions ``net``, ``spec`` and ``data``, and optionally ``trainers``, ``initializer``,
``frozen``, ``balance`` and ``sampling``. They return what `MultiEstimator` and its ``fit`` take under these
names; ``pictures`` returns figures to save. As with pytest's fixtures, a parameter names what a function
needs: ``def data(net)`` gets what ``net()`` returned. Each function is called once. Values at the top of the
module (``epochs = 20``) are its settings; ``def data(batch_size)`` gets the setting's value.

Two more functions are for ``multifit predict``: ``inputs(arguments)`` makes a batch for
`MultiEstimator.predict` from the arguments of the command line (paths or texts), and ``show(outputs)``
returns for each of them a text or a matplotlib figure that shows the prediction.
"""

from __future__ import annotations

import inspect
import sys
import types
from contextlib import contextmanager
from functools import partial
from graphlib import CycleError, TopologicalSorter
from importlib.util import decode_source
from pathlib import Path
from symtable import symtable
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from .errors import quoted, reason, shown, suggest
from .recorded_settings import restored
from .settings import attributes_of, change_setting, parse_setting, settings_of

NEEDED = ("net", "spec", "data")
OPTIONAL = ("trainers", "initializer", "frozen", "balance", "sampling", "pictures", "inputs", "show")


class UsageError(ValueError):
    """The command line or the task file cannot be used."""


@contextmanager
def as_usage_error(*errors: type[Exception]) -> Iterator[None]:
    """Raise UsageError, with the same message, in place of these errors; a single problem has no number."""
    try:
        yield
    except errors as error:
        problems: Sequence[Any] = getattr(error, "problems", ())
        raise UsageError(problems[0].message if len(problems) == 1 else str(error)) from None


class TaskFile:
    """A task file, read and executed; an exception in its own code passes through.

    Its folder is added to ``sys.path``, so that it can import its neighbours as a script can. `functions` are
    those that multifit calls, by name: all of `NEEDED`, and those of `OPTIONAL` that it has. Raises
    UsageError if the file does not exist, is not a Python module, or lacks ``net``, ``spec`` or ``data``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.module, self._assigned = _execute(self.path)
        self.functions = self._find_functions()
        self._written = self.settings  # before a run's or the command line's replace them

    @property
    def settings(self) -> dict[str, Any]:
        """The module's settings: its plain values, such as numbers and strings, that are not constants."""
        return settings_of(self.module)

    @property
    def values(self) -> dict[str, Any]:
        """The settings, by their names and by those in the file, such as ``data_`` for ``data``."""
        settings, in_file = self.settings, attributes_of(self.module)
        return {**settings, **{in_file[name]: value for name, value in settings.items()}}

    def set(self, assignments: Iterable[str]) -> None:
        """Change settings, each by ``name=value``; the value is read as of the type that the file gives it.

        Raises UsageError if an equals sign is missing, the setting is unknown or imported, or the value is of
        another type.
        """
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise UsageError(f'cannot read the setting "{assignment}": write name=value')
            self._change(name.strip(), text.strip() or text, self._parsed)  # a space may be the value

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Restore the settings of an earlier run, as read from JSON.

        Raises UsageError if the file no longer has a setting, or the setting no longer allows the value.
        """
        for name, value in settings.items():
            self._change(name, value, lambda _, value, model: restored(value, model))

    def _parsed(self, name: str, text: str, model: Any) -> Any:
        value, present = parse_setting(text, model), self.settings[name]
        if attributes_of(self.module)[name] not in self._assigned and value != present:
            raise ValueError(
                f"the file does not assign it, so it would stay {shown(present)} where it was imported from; "
                f"write {name} = ... in the file, and pass it to imported functions as a parameter"
            )
        return value

    def _change(self, name: str, value: Any, read: Callable[[str, Any, Any], Any]) -> None:
        if name not in self.settings:
            raise UsageError(
                f'{self.path} has no setting "{name}"{suggest(name, self.settings)}; '
                f"it has {quoted(self.settings)}"
            )
        try:
            change_setting(self.module, name, value, partial(read, name), self._written[name])
        except ValueError as error:
            raise UsageError(f"cannot set {name} of {self.path} to {value!r}: {error}") from None

    def _find_functions(self) -> dict[str, Callable[..., Any]]:
        members = vars(self.module)
        defined = {name: members[name] for name in NEEDED + OPTIONAL if name in members}
        functions = [name for name, value in members.items() if inspect.isroutine(value)]
        for name in NEEDED:
            if name not in defined:
                raise UsageError(
                    f'{self.path} has no function "{name}"{suggest(name, functions)}: '
                    f"a task file needs {quoted(NEEDED)} and may have {quoted(OPTIONAL)}"
                )
        for name, value in defined.items():
            if not inspect.isroutine(value):
                kind = type(value).__name__
                raise UsageError(f'"{name}" of {self.path} must be a function, not of type {kind}')
        return defined


class Resolver:
    """Calls functions with the results of other functions, or with values, by the names of their parameters.

    Each function is called when its result is first needed, and only once. A function replaces a value of the
    same name. Raises UsageError, before any function is called, if a parameter without a default names
    neither a function nor a value, or functions need each other in a circle. `path` is their file, for
    messages. `before` gets the name of each function immediately before it is called.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        values: Mapping[str, Any],
        path: str | Path,
        before: Callable[[str], object] | None = None,
    ) -> None:
        self._functions = dict(functions)
        self._values = {name: value for name, value in values.items() if name not in functions}
        self._path = path
        self._before = before
        for name, function in self._functions.items():
            self._check_names(name, function)
        self._check_circle()

    def __getitem__(self, name: str) -> Any:
        """Return the value or the function's result with this name."""
        if name not in self._values:
            self._values[name] = self._call(name)
        return self._values[name]

    def _call(self, name: str) -> Any:
        function = self._functions[name]
        positional, keywords = [], {}
        for parameter in _parameters(function):
            provided = self._provided(parameter.name)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(self[parameter.name] if provided else parameter.default)
            elif provided:
                keywords[parameter.name] = self[parameter.name]
        if self._before is not None:
            self._before(name)
        return function(*positional, **keywords)

    def _provided(self, name: str) -> bool:
        return name in self._functions or name in self._values

    def _check_names(self, name: str, function: Callable[..., Any]) -> None:
        valid = [*self._functions, *self._values]
        for parameter in _parameters(function):
            if parameter.default is parameter.empty and not self._provided(parameter.name):
                raise UsageError(
                    f'{name}() of {self._path} has an unknown parameter "{parameter.name}"'
                    f"{suggest(parameter.name, valid)}; valid are {quoted(valid)}"
                )

    def _check_circle(self) -> None:
        needs = {
            name: [parameter.name for parameter in _parameters(function)]
            for name, function in self._functions.items()
        }
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise UsageError(f"functions of {self._path} need each other in a circle: {circle}") from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind not in variadic]


def _execute(path: Path) -> tuple[types.ModuleType, set[str]]:
    """Return a file's module, and the names that the file itself assigns at its top, rather than imports."""
    if not path.is_file():
        near = suggest(path.name, (each.name for each in path.parent.glob("*.py")))
        raise UsageError(f"{path} is not a file" if path.exists() else f"there is no file {path}{near}")
    try:
        source = decode_source(path.read_bytes())
        code, names = compile(source, str(path), "exec"), symtable(source, str(path), "exec").get_symbols()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not a Python module: {error}") from None
    module = types.ModuleType(f"multifit_task_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.path.insert(0, str(path.resolve().parent))
    # Registered by name, so that data loaders can send its functions to their worker processes.
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module, {name.get_name() for name in names if name.is_assigned()}
