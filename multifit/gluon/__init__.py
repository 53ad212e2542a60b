"""The engine on MXNet. Other packages import mxnet from here only: ``from .compat import mx``."""
