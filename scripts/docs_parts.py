"""Pages of the reference that no person writes: every family of parts, and what each part takes.

A hook of MkDocs (mkdocs.yml). Parts of this package are shown by their docstrings; those of torch, torchvision and
timm, which have docs of their own, by their names. Beside it: what lies outside docs/ and is linked from there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from opabinia.config import live_catalog
from opabinia.config.registry import Entry

OVERVIEW, MEASURED = "api/parts.md", "measured.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    families = {name: list(parts.values()) for name, parts in live_catalog().entries.items() if parts}
    rows = [f"| [{name}](parts/{name}.md) | {', '.join(_names(parts))} |" for name, parts in sorted(families.items())]
    overview = ["# Parts", "", "What a config can name, by family.", "", "| family | parts |", "|---|---|", *rows]
    files.append(File.generated(config, OVERVIEW, content="\n".join(overview)))
    for name, parts in families.items():
        files.append(File.generated(config, f"api/parts/{name}.md", content=_page(name, parts)))
    results = Path(config.config_file_path).parent / "benchmarks" / "RESULTS.md"
    files.append(File.generated(config, MEASURED, content=results.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/: to the results as a page of the site; of source files only the names are left."""
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"\]\((?:\.\./)+benchmarks/RESULTS\.md", f"]({up}{MEASURED}", markdown)
    return re.sub(r"\[([^]]+)\]\((?:\.\./)+(?:opabinia|scripts|benchmarks)/[^)]+\)", r"\1", markdown)


def _names(parts: Iterable[Entry]) -> list[str]:
    return [f"`{part.name}`" for part in sorted(parts, key=lambda one: one.name)]


def _page(family: str, parts: list[Entry]) -> str:
    shown, others = [], []
    for part in sorted(parts, key=lambda one: one.name):
        place = _place(part)
        if place is None:
            others.append(part)
        else:
            options = "    options: {show_root_heading: false, show_root_toc_entry: false}"
            shown += [f"## {part.name}", "", f"::: {place}", options, ""]
    text = [f"# {family}", "", *shown]
    if others:
        text += ["## Of other libraries", "", "As they are; their parameters: "]
        text += [f"`opabinia config list {family} NAME`.", "", ", ".join(_names(others))]
    return "\n".join(text)


def _place(part: Entry) -> str | None:
    """Where a part of this package is written down; None of another library's."""
    target = inspect.unwrap(part.target) if part.target else None
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    return f"{module}.{name}" if module.startswith("opabinia.") and "<" not in name else None
