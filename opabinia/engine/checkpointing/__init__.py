"""Writing and reading checkpoints, whole or sharded, in a background thread.

``content.py`` has what a checkpoint contains; ``checkpoint.py`` is one on disk, ``manager.py`` those of a run.
"""
