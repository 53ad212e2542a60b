"""Operators and their times, from PyTorch's own profiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def operator_times(run: Callable[[], Any], steps: int) -> tuple[list[tuple[str, float, float]], str]:
    """Run steps under PyTorch's profiler.

    Returns each operator's name, calls per step and milliseconds per step, the slowest first, without the
    operators that it calls itself; and the reason if there are none, else "". On a GPU, the times are those
    of the GPU.
    """
    activities, on_gpu = [ProfilerActivity.CPU], torch.cuda.is_available()
    if on_gpu:  # pragma: no cover - needs a GPU
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recorded:
        run()
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times = [
        (each.key, each.count / steps, getattr(each, name) / 1000 / steps)
        for each in recorded.key_averages()
        if getattr(each, name) > 0
    ]
    return sorted(times, key=lambda row: -row[2]), ""
