"""Detectors: feature maps of a backbone to things in their boxes."""
