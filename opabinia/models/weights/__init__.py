"""Pretrained weights: reading files of many formats without running code, and matching names."""
