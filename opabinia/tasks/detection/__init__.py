"""Object detection, instance segmentation and keypoint detection: one task for all detectors."""

from opabinia.tasks.detection.task import Detection as Detection
