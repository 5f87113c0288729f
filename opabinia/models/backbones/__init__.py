"""Backbones: images or clips to feature vectors and feature maps."""
