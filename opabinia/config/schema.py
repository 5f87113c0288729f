"""The JSON Schema of recipes, from type specs, for completion and hints in editors."""

from __future__ import annotations

from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.merge import DELETE
from opabinia.config.registry import Entry
from opabinia.config.types import Spec, parts_in

Schema = dict[str, Any]

_TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "null": "null"}
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}

REFERENCE: Schema = {"type": "string", "pattern": r"\$\{.*\}", "description": "a reference"}
TEXTS: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
COMPOSITION: dict[str, Schema] = {
    "base": {**TEXTS, "description": "one or several recipes that this one builds on"},
    "vars": {"type": "object", "description": "values of ${vars.name}"},
    "plugins": {"type": "array", "items": {"type": "string"}, "description": "modules that register additional parts"},
}


def json_schema(catalog: Catalog, command: str = "train") -> Schema:
    """Return the schema of a recipe for ``command``.

    It describes files as people write them: a recipe with a ``base`` may omit anything, ``${...}`` may stand for any
    value, a bare string for a part. Only ``opabinia config check`` validates the composed config.

    Raises:
        ConfigError: there is no such command.
    """
    entry = catalog.command(command)
    top = _object(entry)
    required = [
        parameter.name
        for parameter in entry.parameters
        if parameter.required and not catalog.fills_itself(parameter.spec)
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"opabinia {command}",
        **top,
        "properties": {**COMPOSITION, **top["properties"]},
        "if": {"required": ["base"]},
        "else": {"required": required},
        "$defs": _definitions(catalog, entry),
    }


def _definitions(catalog: Catalog, top: Entry) -> dict[str, Schema]:
    """One definition for each part that ``top`` can reach, and one for each family."""
    definitions: dict[str, Schema] = {"reference": REFERENCE}
    waiting = [top]
    while waiting:
        specs = (part for parameter in waiting.pop().parameters for part in parts_in(parameter.spec))
        for spec in specs:
            family, name = spec["family"], spec.get("name")
            if not name and family not in definitions:
                names = catalog.names(family)
                references = [{"$ref": f"#/$defs/{family}.{part}"} for part in names]
                definitions[family] = {"anyOf": [{"enum": names}, *references]}
            for part in [name] if name else catalog.names(family):
                entry = catalog.get(family, part)
                if entry is not None and f"{family}.{part}" not in definitions:
                    definitions[f"{family}.{part}"] = _object(entry)
                    waiting.append(entry)
    return dict(sorted(definitions.items()))


def _object(entry: Entry) -> Schema:
    """The schema of one part's section. Description and default are at the top, where editors look for them."""
    properties: dict[str, Schema] = {}
    for parameter in entry.parameters:
        about: Schema = {"description": parameter.doc} if parameter.doc else {}
        about |= {} if parameter.required else {"default": parameter.default}
        properties[parameter.name] = {**_or_reference(parameter.spec), **about}
    if entry.family not in ("section", "command"):
        replaces = {"type": "boolean", "description": "replace the section of the base instead of merging with it"}
        properties = {"name": {"const": entry.name, "description": entry.doc}, DELETE: replaces, **properties}
    return {"type": "object", "description": entry.doc, "properties": properties, "additionalProperties": False}


def _or_reference(spec: Spec) -> Schema:
    return {"anyOf": [_value(spec), {"$ref": "#/$defs/reference"}]}


def _value(spec: Spec) -> Schema:
    """The schema of the values of a spec."""
    match spec["kind"]:
        case "part":
            return {"$ref": f"#/$defs/{spec['family']}" + (f".{spec['name']}" if spec.get("name") else "")}
        case "union":
            return {"anyOf": [_value(arm) for arm in spec["of"]]}
        case "list":
            return {"type": "array", "items": _or_reference(spec["of"]), **_limits(spec, "Items")}
        case "tuple":
            items, count = [_or_reference(item) for item in spec["of"]], len(spec["of"])
            return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
        case "dict":  # null removes an entry of a dictionary of parts
            values = _value(spec["of"])
            values = {"anyOf": [values, {"type": "null"}]} if spec["of"]["kind"] == "part" else values
            return {"type": "object", "additionalProperties": values or True, **_limits(spec, "Properties")}
        case "literal" | "enum":
            return {"enum": spec["values"]}
        case "duration":
            return {"type": "string", "pattern": rf"^\d+(\.\d+)?\s*({'|'.join(spec['units'])})$"}
        case "path":
            return {"type": "string", "pattern": r"^[^\x00]+$"}
        case "any":
            return {}
    return {
        "type": _TYPES[spec["kind"]],
        **{_BOUNDS[key]: spec[key] for key in _BOUNDS if key in spec},
        **_limits(spec, "Length"),
    }


def _limits(spec: Spec, of: str) -> Schema:
    return {f"{end}{of}": spec[end] for end in ("min", "max") if end in spec}
