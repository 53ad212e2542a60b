"""Runs an estimator's batches with torch, on graphs that MXNet traced; see `runner`."""
