"""Pretrained weights: read files of many formats without running code, and match names and shapes."""
