"""Gluon's graphs on PyTorch. The one package that imports torch; it is imported only when it is used."""
