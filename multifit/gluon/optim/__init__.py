"""Parameters, optimizers, learning rates, updates and gradients."""
