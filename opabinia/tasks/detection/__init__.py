"""Object detection: one task for all detectors."""

from opabinia.tasks.detection.task import Detection as Detection
