"""Task files: Python modules that declare a training, as functions that get each other's results by name.

A task file has the functions ``net``, ``spec`` and ``data``, and optionally ``trainers``, ``initializer``,
``frozen``, ``balance`` and ``sampling``. They return what `MultiEstimator` and its ``fit`` take under these
names; ``handlers`` returns event handlers of the training, and ``pictures`` figures to save. As with pytest's
fixtures, a parameter names what a function needs: ``def data(net)`` gets what ``net()`` returned. Each
function is called once. Values at the top of the module (``epochs = 20``) are its settings;
``def data(batch_size)`` gets the setting's value.

Two more functions are for ``multifit predict``: ``inputs(arguments)`` makes a batch for
`MultiEstimator.predict` from the arguments of the command line (paths or texts), and ``show(outputs)``
returns for each of them a text or a matplotlib figure that shows the prediction.
"""

import ast
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from graphlib import CycleError, TopologicalSorter
from importlib.util import decode_source
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..utils.text import nearest, quoted, suggest

NEEDED = ("net", "spec", "data")
OPTIONAL = (
    "trainers", "initializer", "frozen", "balance", "sampling", "handlers", "pictures", "inputs", "show",
)  # fmt: skip
_ALIASES = {"callbacks": "handlers", "event_handlers": "handlers"}  # their names elsewhere
_OF_MXNET = {"mxnet", "gluoncv", "gluonnlp"}
_NEAR = 0.85  # how much a function's name must be like an optional one's to be a misspelling of it
_SETTINGS: dict[type, str] = {  # the types of settings, in words
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list, such as [1, 2]",
    list: "a list, such as [1, 2]",
    type(None): "anything",
}


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
    those that multifit calls, by name: all of `NEEDED`, and those of `OPTIONAL` that it has. `defaults` are
    its settings as it was executed: numbers, texts, booleans, tuples, lists and Nones whose names are neither
    private nor in capitals. Raises UsageError if the file does not exist, is not a Python module, lacks
    ``net``, ``spec`` or ``data``, or has a function that nothing in it uses, and whose name is almost one of
    `OPTIONAL`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.module = _execute(self.path)
        self.functions = self._find_functions()
        self._check_misspelt()
        self.defaults = {
            name: value
            for name, value in vars(self.module).items()
            if type(value) in _SETTINGS and not name.startswith("_") and not name.isupper()
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the settings by now."""
        return {name: getattr(self.module, name) for name in self.defaults}

    @property
    def texts(self) -> dict[str, str]:
        """The settings as texts for `set`; values that no text gives, such as a list of functions, lack."""
        texts = {}
        for name, value in self.settings.items():
            text = value if isinstance(value, str) and self.defaults[name] is not None else repr(value)
            with suppress(ValueError):
                if repr(self._parsed(name, text)) == repr(value):
                    texts[name] = text
        return texts

    @property
    def library(self) -> str:
        """The library of the net, "mxnet" or "torch", by what the file imports."""
        values = vars(self.module).values()
        homes = [getattr(each, name, "") for each in values for name in ("__name__", "__module__")]
        imported = {str(home).partition(".")[0] for home in homes}
        return "torch" if "torch" in imported and imported.isdisjoint(_OF_MXNET) else "mxnet"

    def needs(self, name: str, parameter: str) -> bool:
        """Return whether a function gets a parameter, or the result of a function that gets it."""
        names = [each.name for each in _parameters(self.functions[name])] if name in self.functions else []
        return parameter in names or any(self.needs(each, parameter) for each in names)

    def set(self, assignments: Iterable[str]) -> None:
        """Change settings, each by ``name=value``; the value is read as of the type that the file gives it.

        Raises UsageError if the setting is unknown, or the value is of another type.
        """
        for assignment in assignments:
            name, _, text = assignment.partition("=")
            name = name.strip()
            if name not in self.defaults:
                raise UsageError(
                    f'{self.path} has no setting "{name}"{suggest(name, self.defaults)}; '
                    f"it has {quoted(self.defaults)}"
                )
            try:
                setattr(self.module, name, self._parsed(name, text))
            except ValueError as error:
                raise UsageError(f"cannot set {name} of {self.path} to {text!r}: {error}") from None

    def _parsed(self, name: str, text: str) -> Any:
        value, choices = parse_setting(text, self.defaults[name]), self._choices(name)
        if choices and value not in choices:
            raise ValueError(f"it must be one of {quoted(choices)}{suggest(value, choices)}")
        return value

    def _choices(self, name: str) -> tuple[Any, ...]:
        """Return the values that a setting is declared to have, such as ``Literal["mlp", "lenet"]``."""
        try:
            hint = get_type_hints(self.module).get(name)
        except NameError:  # of a name that exists for type checkers only
            return ()
        return get_args(hint) if get_origin(hint) is Literal else ()

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

    def _check_misspelt(self) -> None:
        """Raise UsageError for a function with almost an optional one's name that the file does not use."""
        tree = ast.parse(decode_source(self.path.read_bytes()))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        lacking = [name for name in OPTIONAL if name not in self.functions]
        for each in tree.body:
            if not isinstance(each, ast.FunctionDef) or each.decorator_list or each.name in used:
                continue
            near = _ALIASES.get(each.name) or nearest(each.name, lacking, _NEAR)
            if near in lacking and not each.name.startswith("_"):
                raise UsageError(
                    f'{self.path} has a function "{each.name}" that nothing uses (did you mean "{near}"?): a '
                    f"task file may have {quoted(OPTIONAL)}; names of other functions may begin with _"
                )


def parse_setting(text: str, default: Any) -> Any:
    """Return a setting's value from a text: a literal of Python of the default's type.

    Where the default is a string, the text is the value; where it is None, the text may be any literal, or
    else is the value. Raises ValueError for a value of another type.
    """
    kind = type(default)
    if kind is str:
        return text
    value: Any = text
    with suppress(SyntaxError, TypeError, ValueError):
        value = kind(text) if kind in (int, float) else ast.literal_eval(text.strip())
    if kind in (tuple, list) and isinstance(value, (tuple, list)):
        return kind(value)
    if default is not None and type(value) is not kind:
        raise ValueError(f"it must be {_SETTINGS[kind]}")
    return value


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
        before: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._functions = dict(functions)
        self._values = {name: value for name, value in values.items() if name not in functions}
        self._path, self._before = path, before
        self._known = [*self._functions, *self._values]
        self._check()

    def __getitem__(self, name: str) -> Any:
        """Return the value or the function's result with this name."""
        if name not in self._values:
            function = self._functions[name]
            needed = [each.name for each in _parameters(function) if each.name in self._known]
            results = {each: self[each] for each in needed}
            self._before(name)
            self._values[name] = function(**results)
        return self._values[name]

    def _check(self) -> None:
        needs: dict[str, list[str]] = {}
        for name, function in self._functions.items():
            parameters = _parameters(function)
            needs[name] = [each.name for each in parameters]
            for each in parameters:
                if each.default is each.empty and each.name not in self._known:
                    raise UsageError(
                        f'{name}() of {self._path} has an unknown parameter "{each.name}"'
                        f"{suggest(each.name, self._known)}; valid are {quoted(self._known)}"
                    )
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise UsageError(f"functions of {self._path} need each other in a circle: {circle}") from None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind not in variadic]


def _execute(path: Path) -> types.ModuleType:
    """Return a file's module."""
    if not path.is_file():
        near = suggest(path.name, (each.name for each in path.parent.glob("*.py")))
        raise UsageError(f"there is no file {path}{near}")
    try:
        code = compile(decode_source(path.read_bytes()), str(path), "exec")
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not a Python module: {error}") from None
    module = types.ModuleType(f"multifit_task_{path.stem}")
    module.__file__ = str(path.resolve())
    sys.path.insert(0, str(path.resolve().parent))
    # Registered by name, so that data loaders can send its functions to their worker processes.
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module
