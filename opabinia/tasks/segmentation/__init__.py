"""Semantic segmentation: one task for all decoders."""

from opabinia.tasks.segmentation.task import Segmentation as Segmentation
