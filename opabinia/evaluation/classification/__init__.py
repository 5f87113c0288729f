"""Metrics of classifiers: top-k accuracy, multi-label precision, confusion matrix, per-video averages."""
