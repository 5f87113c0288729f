"""Complete configs as text: YAML that loads back to the same config, and flat dictionaries for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from opabinia.config.references import dotted, leaves
from opabinia.config.tree import BadScalar, scalar
from opabinia.config.validate import plain


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as ``{"data.train.transforms.0.size": 64, ...}``."""
    return {dotted(path): value for path, value in leaves(plain(dict(config))) if path}


def describe_source(source: Mapping[str, Any]) -> str:
    """Return the name of a source and the place of its data: ``coco, root a/val, file a/val.json``, or
    ``subset, file split.json, split val of coco, root a ...``.

    Args:
        source: its complete section.
    """
    keys, inner = ("root", "file", "data", "files", "dataset", "split"), source.get("source")
    text = ", ".join([str(source["name"]), *(f"{key} {source[key]}" for key in keys if source.get(key))])
    return f"{text} of {describe_source(inner)}" if isinstance(inner, Mapping) else text


def dump(config: Mapping[str, Any]) -> str:
    """Return a config as YAML that :func:`compose` reads back to the same config."""
    return dump_with_references(escape(plain(dict(config))))


def dump_with_references(config: Mapping[str, Any]) -> str:
    """Return a config as YAML in which ``${...}`` stays a reference."""
    return yaml.dump(
        config,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=120,
        default_flow_style=None,
    )


def flow(value: Any) -> str:
    """Return a value as one line of YAML, such as ``{name: adamw, lr: 0.001}``; ``${...}`` stays a reference."""
    text: str = yaml.dump(
        plain(value),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10**9,
        default_flow_style=True,
    )
    return text.removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Quotes texts that our YAML 1.2 reader would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def escape(value: Any) -> Any:
    """Escape every ``${`` in a value, so that it is not a reference."""
    if isinstance(value, dict):
        return {key: escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quote = '"' if not text.isprintable() else None if _reads_as_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quote)


def _reads_as_text(text: str) -> bool:
    try:
        return isinstance(scalar(text), str)
    except BadScalar:
        return False


_Dumper.add_representer(str, _text)
