"""Checks of the declarations against net, data and trainers; most of them return problems and never raise."""
