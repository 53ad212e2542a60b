"""What runs the engine's batches: one training step, a pass over data, an evaluation."""
