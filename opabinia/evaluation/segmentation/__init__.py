"""Metrics of segmentation: intersection over union of classes and boundaries, panoptic quality."""
