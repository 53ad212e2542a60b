"""Where tests compute with torch: on a GPU if there is one."""

from __future__ import annotations

import torch

__all__ = ["DEVICE"]

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
