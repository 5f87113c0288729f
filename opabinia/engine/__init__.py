"""The training engine. It builds nothing, reads no config and knows no task: parts are passed in.

Here belongs what runs a training: the loop, checkpointing, hooks and loggers, one folder each.
"""
