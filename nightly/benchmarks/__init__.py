"""Benchmarks. multifit is imported here, before any of them imports mxnet, as Python 3.12 needs it."""

import multifit  # noqa: F401
