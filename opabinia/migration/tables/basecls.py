"""Tables for basecls: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, FAMILIES, MODELS = read_tables("basecls", "DEFAULTS REASONS FAMILIES MODELS")
PARAMETERS, PER = read_tables("basecls", "PARAMETERS PER")

OPTIMIZERS = {name: name for name in ("sgd", "adam", "adamw", "lamb", "lars")}
