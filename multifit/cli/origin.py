"""Where an error came from: which line of the task file raised it, and whether multifit itself did."""

from __future__ import annotations

import traceback
from importlib.util import find_spec
from pathlib import Path

from ..errors import shown, suggest
from ..files import OF_DISK

# what to install for modules that are called otherwise
PACKAGES = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def place_in(file: object, error: BaseException) -> str:
    """Return the line of the task file that raised an error, in words; "" if another file raised it."""
    lines = _lines(file, error)
    return f" ({file}, line {lines[-1]})" if lines else ""


def is_raised_in(function: str, file: object, error: BaseException) -> bool:
    """Return whether a function of the task file, or what it called, raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return any((frame.name, frame.filename) == (function, str(Path(str(file)))) for frame in frames)


def exit_of(file: object, error: SystemExit) -> str:
    """Return which line called ``sys.exit``: of the task file, or where it did not, of what it imports."""
    last, lines = traceback.extract_tb(error.__traceback__)[-1], _lines(file, error)
    name, line = (file, lines[-1]) if lines else (last.filename, last.lineno)
    code = "" if error.code is None else shown(error.code)
    return (
        f"line {line} of {name} called sys.exit({code}); to end a command, raise an exception that says why"
    )


def missing_package(file: object, error: BaseException) -> str:
    """Return which package to install if the task file imports a module that is not there, else ""."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not module or not _lines(file, error) or find_spec(module) is not None:
        return ""
    near = suggest(module, (path.stem for path in Path(str(file)).parent.iterdir()))
    if near and module not in PACKAGES:
        return f'{file} imports "{module}", which is not installed{near}'
    package = PACKAGES.get(module, module)
    return f"{file} needs {package}: pip install {package}"


def is_about_a_file(error: OSError) -> bool:
    """Return whether the message, with a file's path or of a full disk, says more than a traceback."""
    files = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
    return isinstance(error, files) or error.filename is not None or error.errno in OF_DISK


def raised_by_multifit(error: BaseException) -> bool:
    """Return whether multifit itself raised, not the user's code or a library that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals["__name__"].split(".")[0] == "multifit"


def _lines(file: object, error: BaseException) -> list[int]:
    """Return the lines of a file that led to an error, the last one called last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno or 0 for frame in frames if file and frame.filename == str(Path(str(file)))]
