"""Semantic and panoptic segmentation: one task for all models of each."""

from opabinia.tasks.segmentation.panoptic import Panoptic as Panoptic
from opabinia.tasks.segmentation.task import Segmentation as Segmentation
