import json
from typing import Any

import pytest

from opabinia.config import ConfigError, json_schema
from tests.config.toys import CATALOG


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema(CATALOG)


def references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [reference for item in schema for reference in references(item)]
    if not isinstance(schema, dict):
        return []
    own_reference = [schema["$ref"]] if "$ref" in schema else []
    return own_reference + [reference for item in schema.values() for reference in references(item)]


def test_the_top_level_is_the_command(schema: dict[str, Any]) -> None:
    assert json.loads(json.dumps(schema)) == schema
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert list(schema["properties"])[:5] == ["base", "vars", "plugins", "task", "data"]
    assert schema["if"] == {"required": ["base"]}
    assert schema["else"] == {"required": ["task", "data", "train"]}  # checkpoint has only defaults


def test_every_reference_resolves_and_every_definition_is_used(schema: dict[str, Any]) -> None:
    names = {ref.removeprefix("#/$defs/") for ref in references(schema)}
    assert names == set(schema["$defs"])


def test_a_part_is_its_name_or_a_section(schema: dict[str, Any]) -> None:
    names, *sections = schema["$defs"]["optimizer"]["anyOf"]
    assert names == {"enum": ["adam", "sgd"]}
    assert sections == [{"$ref": "#/$defs/optimizer.adam"}, {"$ref": "#/$defs/optimizer.sgd"}]
    sgd = schema["$defs"]["optimizer.sgd"]
    assert sgd["properties"]["name"] == {"const": "sgd", "description": "Toy SGD."}
    assert sgd["additionalProperties"] is False and "required" not in sgd
    assert sgd["properties"]["lr"] == {
        "anyOf": [{"exclusiveMinimum": 0, "type": "number"}, {"$ref": "#/$defs/reference"}],
        "description": "step size.",
        "default": 0.1,
    }


def test_forms_of_values(schema: dict[str, Any]) -> None:
    definitions = schema["$defs"]
    train = definitions["section.training"]["properties"]
    assert train["length"]["anyOf"][0] == {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ep|it)$"}
    assert train["device"]["anyOf"][0] == {"enum": ["auto", "cpu", "cuda"]}
    crop = definitions["transform.crop"]["properties"]
    assert crop["mode"]["anyOf"][0]["enum"] == ["nearest", "bilinear"]
    assert crop["size"]["anyOf"][0]["anyOf"][0] == {"type": "integer"}
    betas = definitions["optimizer.adam"]["properties"]["betas"]["anyOf"][0]
    assert (betas["minItems"], betas["maxItems"], len(betas["prefixItems"])) == (2, 2, 2)
    hooks = schema["properties"]["hooks"]["anyOf"][0]["anyOf"][0]
    assert hooks["additionalProperties"] == {"anyOf": [{"$ref": "#/$defs/hook"}, {"type": "null"}]}
    transforms = definitions["section.data"]["properties"]["transforms"]["anyOf"][0]
    assert transforms["items"] == {"anyOf": [{"$ref": "#/$defs/transform"}, {"$ref": "#/$defs/reference"}]}


def test_an_unknown_command() -> None:
    with pytest.raises(ConfigError, match="there is no command 'trian'"):
        json_schema(CATALOG, "trian")
