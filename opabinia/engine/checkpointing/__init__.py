"""Writing and reading checkpoints, whole or sharded, in a background thread.

``checkpoint.py`` is one checkpoint on disk, ``manager.py`` the checkpoints of a run.
"""
