"""Metrics of multi-object tracking: HOTA, CLEAR MOT and identity metrics, from sums of whole sequences."""
