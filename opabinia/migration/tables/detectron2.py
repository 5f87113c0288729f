"""Tables for detectron2: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, UNSUPPORTED_VALUES, NECKS = read_tables("detectron2", "DEFAULTS REASONS UNSUPPORTED_VALUES NECKS")
NORMS, METRICS, HEADS = read_tables("detectron2", "NORMS METRICS HEADS")


DEPTHS = (18, 34, 50, 101, 152)
"""Depths of ResNets."""

RESNETS = {
    (50, 32, 4): "resnext50_32x4d",
    (101, 32, 4): "resnext101_32x4d",
    (101, 32, 8): "resnext101_32x8d",
    (101, 64, 4): "resnext101_64x4d",
}
"""timm's names of ResNeXts by depth, number of groups and width per group."""


LOSSES = {name: name for name in ("smooth_l1", "giou", "diou", "ciou")}
