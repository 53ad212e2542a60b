"""The versions of the package, and of what it runs with."""

import platform
import sys
from collections.abc import Sequence

__version__ = "0.1.0"


def installed_versions(libraries: Sequence[str] = ("mxnet", "torch")) -> dict[str, str]:
    """Return the versions that a run's figures depend on most; of `libraries`, those that are imported."""
    found = {"multifit": __version__, "python": platform.python_version()}
    modules = {name: sys.modules.get(name) for name in ("numpy", *libraries)}
    return found | {name: str(each.__version__) for name, each in modules.items() if each is not None}
