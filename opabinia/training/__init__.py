"""Training commands around the engine: build the session from a config, manage the run folder, launch.

The package is imported lightly; importing :mod:`opabinia.training.builtin_parts` registers every built-in part.
"""
