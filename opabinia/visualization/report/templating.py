"""Templates of pages that are one file: the report of runs, and that of the data doctor."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any


@cache
def template(name: str, package: str = "opabinia.visualization.report") -> Any:
    """A template of Jinja in the folder ``templates`` of a package, which may import those of the report. What it shows
    is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    return environment.from_string(text_of(name, package))


def text_of(name: str, package: str = "opabinia.visualization.report") -> str:
    """A file in the folder ``templates`` of a package."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def _number(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return str(value)
