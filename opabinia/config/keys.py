"""Shell completion of ``key=value``: the keys below a place in a config, and the values of a key.

It reads only the catalog and the composed tree: no part and no torch is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.errors import show
from opabinia.config.registry import Entry
from opabinia.config.types import Spec

Place = tuple[Spec, Any]
"""A type spec, and the plain value in the config (None if there is none)."""


def completed(word: str, config: Mapping[str, Any], catalog: Catalog) -> list[str]:
    """Return all completions of the beginning of an override. Keys end with ``.`` or ``=``.

    Args:
        word: the text so far, such as ``opt``, ``optimizer.l`` or ``task.backbone=``.
        config: the recipe as plain data.
        catalog: of all parts; may be a cached one.

    Example: ``completed("optimizer.l", ...)`` is ``["optimizer.lr="]``.
    """
    entry = catalog.get("command", "train")
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
        values = list(_values(*places[last], catalog)) if last in places else []
        return [f"{key}={item}" for item in dict.fromkeys(values) if item.startswith(value)]
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


def _entry(part: Spec, value: Any, catalog: Catalog, key: str) -> Entry | None:
    given = value if isinstance(value, Mapping) else {}
    name = part.get("name") or (value if isinstance(value, str) else given.get("name", key))
    return catalog.find("section" if part.get("name") else part["family"], str(name))


def _inside(spec: Spec, value: Any, catalog: Catalog, key: str = "") -> Iterator[tuple[str, Place]]:
    """The places below a place, by key or position."""
    kind, given = spec["kind"], value if isinstance(value, Mapping) else {}
    if kind == "union":
        for arm in spec["of"]:
            yield from _inside(arm, value, catalog, key)
    elif kind == "part":
        entry = _entry(spec, value, catalog, key)
        yield from _parameters(entry, given) if entry else ()
    elif kind == "dict":
        yield from ((str(name), (spec["of"], item)) for name, item in given.items())
    elif kind == "list" and isinstance(value, list):
        yield from ((str(number), (spec["of"], item)) for number, item in enumerate(value))


def _ends(place: Place, catalog: Catalog, key: str) -> list[str]:
    """The endings of a key: ``.`` if there is something below it, ``=`` if it may have a value of one word."""
    spec = place[0]
    has_inside = next(_inside(*place, catalog, key), None) is not None
    kinds = {arm["kind"] for arm in (spec["of"] if spec["kind"] == "union" else [spec])}
    is_section = spec["kind"] == "part" and bool(spec.get("name"))
    is_word = not kinds <= {"dict"} and not is_section
    return ["."] * has_inside + ["="] * (is_word or not has_inside)


def _values(spec: Spec, value: Any, catalog: Catalog) -> Iterator[str]:
    """Words that a key may be set to; for numbers and texts its current value."""
    kind = spec["kind"]
    if kind == "union":
        for arm in spec["of"]:
            yield from _values(arm, value, catalog)
    elif kind == "part" and not spec.get("name"):
        yield from catalog.names(spec["family"])
    elif kind in ("literal", "enum"):
        yield from map(_word, spec["values"])
    elif kind == "bool":
        yield from ("true", "false")
    elif kind == "null":
        yield "null"
    elif kind in ("int", "float", "str", "path", "duration") and isinstance(value, int | float | str):
        yield _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
