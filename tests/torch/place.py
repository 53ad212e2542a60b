"""Where tests compute with torch: on a GPU if there is one."""

from multifit.torch.devices import device_of

__all__ = ["DEVICE"]

DEVICE = device_of(None)
