"""Streams of training data: each has its own order of samples, and the batch of a step joins those of several streams.

A multi-task run has a stream for each task with training data, any other run has one.
"""

SINGLE = ""
"""Name of the only stream of a run of one task."""
