"""Benchmarks. multifit is imported before mxnet, which needs that on Python 3.12."""

import multifit  # noqa: F401
