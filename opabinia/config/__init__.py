"""Configs: parts are registered, files are put together, checked against signatures, and built. Imports no torch."""

from opabinia.config.errors import ConfigError as ConfigError
from opabinia.config.errors import Problem as Problem
from opabinia.config.families import register as register
from opabinia.config.types import Part as Part
from opabinia.config.adapt import adapt as adapt
