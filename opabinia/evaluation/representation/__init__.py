"""Evaluation of frozen features: k-nearest neighbours, linear probes, SVMs, clustering, collapse."""
