"""Tables for MMDetection: the equivalents of its names, its classes' defaults, and values that need no counterpart."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, DETECTORS, REGNETS = read_tables("mmdetection", "DEFAULTS REASONS DETECTORS REGNETS")
NORMS, HEADS, BOX_LOSSES, ALLOWED = read_tables("mmdetection", "NORMS HEADS BOX_LOSSES ALLOWED")
(PIPELINE_NO_EFFECT,) = read_tables("mmdetection", "PIPELINE_NO_EFFECT")


RESNETS: dict[tuple[int, int, int], str] = {
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 4): "resnext101_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""timm's ResNeXts by depth, groups and width per group."""
