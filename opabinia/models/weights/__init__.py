"""Pretrained weights: read files of many formats without running code, and match names and shapes."""

FORMAT_MODULES: list[str] = []
"""Modules that register the weight formats of other systems, imported when weights are first read."""
