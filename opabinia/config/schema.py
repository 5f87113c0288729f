"""The JSON Schema of recipes, from the pydantic models that validate them, for completion and hints in editors."""

from __future__ import annotations

from typing import Any

from opabinia.config.catalog import Catalog
from opabinia.config.errors import ConfigError, Problem, listing
from opabinia.config.merge import DELETE
from opabinia.config.registry import Entry
from opabinia.config.types import parts_in
from opabinia.config.validate import PART

Schema = dict[str, Any]

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
    entry = catalog.get("command", command)
    if entry is None:
        known = listing(catalog.names("command"))
        raise ConfigError(Problem("", "", f"there is no command {command!r}", allowed=f"commands: {known}"))
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
    """The schema of one part's section."""
    model = entry.signature.model.model_json_schema(by_alias=True)
    properties = {name: _property(schema) for name, schema in model.get("properties", {}).items()}
    if entry.family not in ("section", "command"):
        replaces = {"type": "boolean", "description": "replace the section of the base instead of merging with it"}
        properties = {"name": {"const": entry.name, "description": entry.doc}, DELETE: replaces, **properties}
    return {"type": "object", "description": entry.doc, "properties": properties, "additionalProperties": False}


def _property(schema: Schema) -> Schema:
    """A parameter's schema or a reference; description and default stay at the top, where editors look for them."""
    about: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    value = {key: item for key, item in schema.items() if key not in ("title", "description", "default")}
    return {"anyOf": [_relaxed(value), {"$ref": "#/$defs/reference"}], **about}


def _relaxed(schema: Schema) -> Schema:
    """Allow references as items of lists, and null to remove an entry of a dictionary of parts."""
    if PART in schema:
        part = schema[PART]
        return {"$ref": f"#/$defs/{part['family']}.{part['name']}" if part.get("name") else f"#/$defs/{part['family']}"}
    schema = dict(schema)
    if "anyOf" in schema:
        schema["anyOf"] = [_relaxed(arm) for arm in schema["anyOf"]]
    if isinstance(schema.get("items"), dict):
        schema["items"] = {"anyOf": [_relaxed(schema["items"]), {"$ref": "#/$defs/reference"}]}
    if "prefixItems" in schema:
        schema["prefixItems"] = [
            {"anyOf": [_relaxed(item), {"$ref": "#/$defs/reference"}]} for item in schema["prefixItems"]
        ]
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        schema["additionalProperties"] = {"anyOf": [_relaxed(values), {"type": "null"}]} if PART in values else values
    return schema
