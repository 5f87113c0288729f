"""Streams of training data: each has its own order of samples, and the batch of a step joins those of several streams.

A multi-task run has a stream for each task with training data, a semi-supervised run one of labeled and one of
unlabeled images, any other run has one.
"""
