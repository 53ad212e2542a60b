"""Write nets for use elsewhere: modules, and graphs that MXNet has traced."""

from .native import export

__all__ = ["export"]
