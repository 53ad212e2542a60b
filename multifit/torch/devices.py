"""The device of a run on torch, and whether it computes the same bits every time."""

import os
from typing import Any

import torch

from ..distributed import local_rank
from ..utils.text import shown

WAY_OUT = "call torch.use_deterministic_algorithms(True) first, or train with --deterministic"
VALID = 'give one device, such as "cuda:0" or "cpu"'


def device_of(context: Any) -> torch.device:
    """Return the device that a context names; by default a GPU, else the CPU.

    A GPU without a number is the first GPU; if a launcher started several processes on this machine, it is
    the GPU with the number of the process. `context` is a string or a device of torch, or a context of MXNet.
    Raises ValueError if the device does not exist, or if several are given.
    """
    contexts = list(context) if isinstance(context, (list, tuple)) else [context]
    if len(contexts) != 1:
        raise ValueError(f'context: engine="torch" trains on one device, not on {len(contexts)}; {VALID}')
    (item,) = contexts
    if item is None:
        item = "cuda" if torch.cuda.is_available() else "cpu"
    if hasattr(item, "device_type"):
        item = f"cuda:{item.device_id}" if item.device_type == "gpu" else "cpu"
    try:
        device = torch.device(item.replace("gpu", "cuda") if isinstance(item, str) else item)
        if device.type == "cuda":
            device = torch.device("cuda", local_rank() if device.index is None else device.index)
            if device.index >= torch.cuda.device_count():
                raise ValueError(f"this machine has {torch.cuda.device_count()} CUDA devices for torch")
        if device.type == "cpu" and device.index:
            raise ValueError("all cores are one CPU for torch")
        torch.empty(0, device=device)
    except Exception as error:  # whatever torch raises for a device that it does not know or have
        why = str(error).partition("\n")[0]
        raise ValueError(f"context: {shown(item)} is not a PyTorch device: {why}; {VALID}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"context: multifit computes on cpu and cuda, not on {shown(item)}; {VALID}")
    return device


def be_deterministic() -> None:
    """Choose algorithms that compute the same bits every time; torch warns of operators that have none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # matrix products need it
    torch.use_deterministic_algorithms(True, warn_only=True)


def why_inexact(device: torch.device) -> str:
    """Return why two runs on a device may differ in the last bits, and the way out; "" if that is not known.

    If deterministic algorithms are chosen, torch itself warns of operators that have none.
    """
    if device.type == "cpu" or torch.are_deterministic_algorithms_enabled():
        return ""
    return f"PyTorch's algorithms on {device} may round differently each time; {WAY_OUT}"  # pragma: no cover
