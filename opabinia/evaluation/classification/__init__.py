"""Metrics of classifiers: top-k accuracy, multi-label precision, confusion matrix, calibration, predictions of videos
averaged over clips."""
