"""Hyperparameter sweeps and repeated runs with different seeds. Importing this does not import torch."""
