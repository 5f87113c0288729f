"""Evaluation of frozen features: k-nearest neighbors, linear probes, SVMs, few-shot learning, clustering, collapse."""
