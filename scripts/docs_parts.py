"""Generate the pages of the API reference: one page for each family of parts.

A hook of MkDocs (mkdocs.yml). Parts of this package are shown by their docstrings, parts of torch, torchvision and timm
by name. It also adds benchmarks/RESULTS.md, which is outside docs/ but linked from there, and marks short code, which
docs/style.css keeps on one line: browsers break a line behind the hyphens of `--option`.
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

OVERVIEW, RESULTS = "api/parts.md", "measured.md"
SHORT_CODE = 28
"""Characters of code in a sentence that fit into a line of a phone."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    families = {name: list(parts.values()) for name, parts in live_catalog().entries.items() if parts}
    rows = [f"| [{name}](parts/{name}.md) | {', '.join(_names(parts))} |" for name, parts in sorted(families.items())]
    overview = ["# Parts", "", "All parts that a config can name, by family.", "", "| family | parts |", "|---|---|"]
    files.append(File.generated(config, OVERVIEW, content="\n".join([*overview, *rows])))
    for name, parts in families.items():
        files.append(File.generated(config, f"api/parts/{name}.md", content=_family_page(name, parts)))
    results = Path(config.config_file_path).parent / "benchmarks" / "RESULTS.md"
    content = results.read_text(encoding="utf-8").replace("](../docs/", "](")
    files.append(File.generated(config, RESULTS, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links out of docs/: those to the results lead to their page, those to source files become text."""
    root = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"\]\((?:\.\./)+benchmarks/RESULTS\.md", f"]({root}{RESULTS}", markdown)
    return re.sub(r"\[([^]]+)\]\((?:\.\./)+(?:opabinia/|scripts/|benchmarks/|CONTRIBUTING)[^)]+\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code in sentences and tables."""
    return re.sub(rf"<code>([^<\n]{{1,{SHORT_CODE}}})</code>", r'<code class="short">\1</code>', html)


def _names(parts: Iterable[Entry]) -> list[str]:
    return [f"`{part.name}`" for part in sorted(parts, key=lambda part: part.name)]


def _family_page(family: str, parts: list[Entry]) -> str:
    lines, foreign = [f"# {family}", ""], []
    for part in sorted(parts, key=lambda part: part.name):
        if (path := _import_path(part)) is None:
            foreign.append(part)
        else:
            options = "    options: {show_root_heading: false, show_root_toc_entry: false}"
            module, _, name = path.rpartition(".")
            lines += [f"## {part.name}", "", f"`from {module} import {name}`", "", f"::: {path}", options, ""]
    if foreign:
        lines += ["## Parts of other libraries", "", f"Their parameters: `opabinia config list {family} NAME`.", ""]
        lines.append(", ".join(_names(foreign)))
    return "\n".join(lines)


def _import_path(part: Entry) -> str | None:
    """Return ``module.name`` of a part of this package; None for parts of other libraries."""
    target = inspect.unwrap(part.target) if part.target else None
    module, name = getattr(target, "__module__", ""), getattr(target, "__qualname__", "")
    return f"{module}.{name}" if module.startswith("opabinia.") and "<" not in name else None
