"""The training and evaluation loops, the optimizer step, mixed precision, and multi-GPU training.

Here belongs what happens in every step or evaluation. Periodic actions are hooks.
"""
