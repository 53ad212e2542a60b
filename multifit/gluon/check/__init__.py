"""Checks the first batch, before any update."""
