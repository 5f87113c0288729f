"""Evaluators: metrics of classifiers, detectors, retrieval, and frozen features, equal on any number of processes."""
