"""The devices and the engine of a run: those of the command line, or those of the resumed run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

from ..engines import AUTO, choose_engine, engine_module, needs_torch
from ..gluon.data.devices import VALID, missing_gpus, parse_devices
from ..taskfile import UsageError, as_usage_error
from .record import RunRecord


def choose_context(devices: str | None, engine: str, compiles: bool | str) -> tuple[Any, Any]:
    """Return the context of the run, and that of the net's own parameters.

    Raises UsageError if the devices cannot be read or do not exist, or the engine cannot run there.
    """
    name = choose_engine(engine, devices)  # the estimator logs it
    with as_usage_error(ImportError), _named_as_option(devices):
        context = devices if name == "torch" or devices is None else parse_devices(devices)
        name = choose_engine(engine, context)
        if needs_torch(compiles) and name != "torch":
            raise UsageError("--compile needs PyTorch's engine: add --engine torch, or leave it out")
        host = engine_module(name).host(context)
    missing = missing_gpus(context) if isinstance(context, list) and name != "torch" else []
    if missing:
        raise UsageError(f"--devices {devices}: {'; '.join(missing)}; {VALID}")
    return context, host


@contextmanager
def _named_as_option(devices: str | None) -> Iterator[None]:
    """Raise UsageError in place of a ValueError about a context, which is what Python calls the devices."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        option = "" if devices is None else f"--devices {devices}: "
        raise UsageError(f"{option}{str(error).removeprefix('context: ')}") from None


def earlier_engine(record: RunRecord | None) -> str:
    """Return the engine that an earlier run's command line named; UsageError if it is not installed."""
    engine = AUTO if record is None else record.engine
    if engine != AUTO:
        try:
            engine_module(engine)
        except ImportError as error:
            raise UsageError(f"the run used --engine {engine}: {error}; or give --engine mxnet") from None
    return engine


def earlier_devices(record: RunRecord | None, engine: str) -> str | None:
    """Return the devices of an earlier run, as ``--devices`` takes them; None if they do not exist here."""
    devices = None if record is None else record.devices_option
    # With torch, MXNet's contexts are those of the net's own parameters
    if devices is None or (engine == "torch" and devices.startswith(("cpu:", "gpu:"))):
        return None
    try:
        choose_context(devices, engine, False)
    except ValueError:  # a run may go on elsewhere
        return None
    return devices
