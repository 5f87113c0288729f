"""Tables for OpenMMLab's configs: sections, keys of the 2.x generation, optimizers and schedules."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

REASONS, SECTIONS, MOVED, OPTIMIZERS = read_tables("openmmlab", "REASONS SECTIONS MOVED OPTIMIZERS")
SCHEDULES, WARMUPS, CUSTOM_KEYS = read_tables("openmmlab", "SCHEDULES WARMUPS CUSTOM_KEYS")
