"""Tables for MMAction2: the defaults of its classes, supported values, and values without a counterpart."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, CLASSES, CHANGEABLE = read_tables("mmaction", "DEFAULTS REASONS CLASSES CHANGEABLE")
PATHWAY, HEADS, SWINS, MVITS, I3D_INFLATE = read_tables("mmaction", "PATHWAY HEADS SWINS MVITS I3D_INFLATE")
NO_EFFECT, ALLOWED = read_tables("mmaction", "NO_EFFECT ALLOWED")

SWIN_DROP_PATH = 0.1
"""Of torchvision's networks, which cannot be changed."""


X3D_DEPTHS = {2.2: "M", 5.0: "L"}
