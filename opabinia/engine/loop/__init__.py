"""The training and evaluation loops, the optimizer step, mixed precision, and parallel training."""
