"""Batches: loaders, devices, seeding, and arrays on their devices."""
