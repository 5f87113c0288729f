"""Tables for FastReID: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from opabinia.migration.tables import read_tables

DEFAULTS, REASONS, RESNETS, RESNET_KEYS = read_tables("fastreid", "DEFAULTS REASONS RESNETS RESNET_KEYS")
TIMM_MODELS, STRIDED, OWN_MODELS, TASKS = read_tables("fastreid", "TIMM_MODELS STRIDED OWN_MODELS TASKS")
REFUSED, NORMS, POOLINGS, HEADS = read_tables("fastreid", "REFUSED NORMS POOLINGS HEADS")
METRIC_LOSSES, METRICS, WARMUPS, SOURCES = read_tables("fastreid", "METRIC_LOSSES METRICS WARMUPS SOURCES")
ATTRIBUTE_SOURCES, OPEN_SOURCES = read_tables("fastreid", "ATTRIBUTE_SOURCES OPEN_SOURCES")
