"""Tables for MMPretrain: timm's names of its networks, its classes' defaults, and values that need no counterpart."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, NETWORKS, SIZE_KEYS = read_tables("mmpretrain", "DEFAULTS REASONS NETWORKS SIZE_KEYS")
HEADS, ALLOWED, PIPELINE_NO_EFFECT = read_tables("mmpretrain", "HEADS ALLOWED PIPELINE_NO_EFFECT")

DROP_PATH: dict[str, float] = {"SwinTransformer": 0.1}
"""Default probability to skip a residual branch; 0 of all other networks."""
