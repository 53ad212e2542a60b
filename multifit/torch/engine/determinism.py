"""Whether PyTorch computes the same bits every time."""

import os

import torch

WAY_OUT = "call torch.use_deterministic_algorithms(True) first, or train with --deterministic"


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
    return f"PyTorch's algorithms on {device} may round differently each time; {WAY_OUT}"
