"""Runs Gluon's graphs on PyTorch. Only this package imports torch; it is imported only when it is used."""
