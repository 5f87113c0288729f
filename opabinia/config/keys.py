"""What may stand in a ``key=value``: keys below a place in a config, and values of a key. For completion in shells.

Reads the catalog and the composed tree only: no part, no torch and no judge is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.errors import show
from opabinia.config.registry import Entry
from opabinia.config.types import Spec

Place = tuple[Spec, Any]
"""What is accepted somewhere, and the plain value that is there (None: none)."""


def completed(word: str, config: Mapping[str, Any], catalog: Catalog, command: str = "train") -> list[str]:
    """All that the beginning of an override may become; keys go on with ``.`` or end with ``=``.

    Args:
        word: what is typed so far, such as ``opt``, ``optimizer.l`` or ``task.backbone=``.
        config: what the recipe says, as plain data.
        catalog: of all parts, may be a cached one.
        command: whose parameters are the top level.

    Example: ``completed("optimizer.l", ...)`` is ``["optimizer.lr="]``.
    """
    entry = catalog.get("command", command)
    if entry is None:
        return []
    key, equals, value = word.partition("=")
    *outer, last = key.split(".")
    places = dict(_parameters(entry, config))
    for name in outer:
        if name not in places:
            return []
        places = dict(_inside(*places[name], catalog, name))
    if equals:
        found = list(_values(*places[last], catalog)) if last in places else []
        return [f"{key}={one}" for one in dict.fromkeys(found) if one.startswith(value)]
    prefix = "".join(f"{name}." for name in outer)
    return [
        f"{prefix}{name}{end}"
        for name, place in places.items()
        if name.startswith(last)
        for end in _ends(place, catalog, name)
    ]


def _parameters(entry: Entry, values: Mapping[str, Any]) -> Iterator[tuple[str, Place]]:
    for parameter in entry.parameters:
        yield parameter.name, (parameter.spec, values.get(parameter.name, parameter.default))


def _inside(spec: Spec, value: Any, catalog: Catalog, key: str = "") -> Iterator[tuple[str, Place]]:
    """What lies below a place, by key or position."""
    kind, given = spec["kind"], value if isinstance(value, Mapping) else {}
    if kind == "union":
        for arm in spec["of"]:
            yield from _inside(arm, value, catalog, key)
    elif kind == "part":
        name = spec.get("name") or (value if isinstance(value, str) else given.get("name", key))
        entry = catalog.get("section" if spec.get("name") else spec["family"], str(name))
        yield from _parameters(entry, given) if entry else ()
    elif kind == "dict":
        yield from ((str(name), (spec["of"], item)) for name, item in given.items())
    elif kind == "list" and isinstance(value, list):
        yield from ((str(number), (spec["of"], item)) for number, item in enumerate(value))


def _ends(place: Place, catalog: Catalog, key: str) -> list[str]:
    """How a key may go on: ``.`` where there is something below it, ``=`` where it may have a value of one word."""
    spec = place[0]
    below = next(_inside(*place, catalog, key), None) is not None
    kinds = {arm["kind"] for arm in (spec["of"] if spec["kind"] == "union" else [spec])}
    only_section = spec["kind"] == "part" and bool(spec.get("name"))
    single = not kinds <= {"dict"} and not only_section
    return ["."] * below + ["="] * (single or not below)


def _values(spec: Spec, value: Any, catalog: Catalog) -> Iterator[str]:
    """Words that a key may be set to; of numbers and texts the one that it has now."""
    kind = spec["kind"]
    if kind == "union":
        for arm in spec["of"]:
            yield from _values(arm, value, catalog)
    elif kind == "part" and not spec.get("name"):
        yield from catalog.names(spec["family"])
    elif kind in ("literal", "enum"):
        yield from (_word(one) for one in spec["values"])
    elif kind == "bool":
        yield from ("true", "false")
    elif kind == "null":
        yield "null"
    elif kind in ("int", "float", "str", "path", "duration") and isinstance(value, int | float | str):
        yield _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
