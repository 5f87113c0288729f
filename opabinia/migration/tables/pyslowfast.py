"""PySlowFast's keys: its defaults (slowfast/config/defaults.py), values that are refused, and reasons."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, PLAIN_MVIT, MVIT_VERSIONS = read_tables("pyslowfast", "DEFAULTS REASONS PLAIN_MVIT MVIT_VERSIONS")
MVITS, IMAGE_MVITS, REFUSED = read_tables("pyslowfast", "MVITS IMAGE_MVITS REFUSED")


X3D_DEPTHS = {2.2: "M", 5.0: "L"}
"""Sizes of X3D by their depth factor. XS and S are networks like M."""
