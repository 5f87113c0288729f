"""Templates of self-contained pages: the report of runs, and that of the data check."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from opabinia.runtime.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

_PACKAGE = "opabinia.visualization.report"


@cache
def template(name: str, package: str = _PACKAGE) -> Template:
    """Return a Jinja template in the folder ``templates`` of a package, which may import those of the report. Values
    are escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FunctionLoader(text_of), autoescape=True, **options)
    environment.filters["number"] = _format
    shared = {"style": "style.css", "script": "script.js", "shell": "page.js"}
    environment.globals |= {"version": __version__, **{key: text_of(file) for key, file in shared.items()}}
    return environment.from_string(text_of(name, package))


def text_of(name: str, package: str = _PACKAGE) -> str:
    """Return the content of a file in the folder ``templates`` of a package."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def _format(value: Any) -> str:
    """Return a value as text of a table cell."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return str(value)
