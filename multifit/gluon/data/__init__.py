"""Batches: loaders, devices, workers, and arrays on their devices."""
