"""Configs: register parts, compose files, check them against signatures, build them. Does not import torch."""

from opabinia.config.adapt import adapt as adapt
from opabinia.config.build import build as build
from opabinia.config.catalog import Catalog as Catalog
from opabinia.config.catalog import catalog as catalog
from opabinia.config.catalog import live_catalog as live_catalog
from opabinia.config.catalog import warm_catalog as warm_catalog
from opabinia.config.check import Resolved as Resolved
from opabinia.config.check import check as check
from opabinia.config.compose import Tree as Tree
from opabinia.config.compose import compose as compose
from opabinia.config.describe import config_of as config_of
from opabinia.config.errors import ConfigError as ConfigError
from opabinia.config.errors import Problem as Problem
from opabinia.config.registry import register as register
from opabinia.config.schema import json_schema as json_schema
from opabinia.config.text import dump as dump
from opabinia.config.text import flatten as flatten
from opabinia.config.types import MustExist as MustExist
from opabinia.config.types import Part as Part
