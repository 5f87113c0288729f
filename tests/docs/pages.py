"""The fenced blocks of README and docs/, by their language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOLD = {"docs/log.md", "docs/design.md"}
"""Pages that tell what was done, and how it is built: nothing there is to be copied."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """What stands between two fences.

    Attributes:
        page: its path in the repository.
        number: which block of its language on this page, from 1.
        language: what stands behind the first fence.
        text: the lines between.
    """

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def blocks(language: str | None = None) -> list[Block]:
    """All of them, or those of a language, but for the pages that only tell."""
    found, seen = [], dict[tuple[str, str], int]()
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        if page in TOLD:
            continue
        for kind, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.S | re.M):
            seen[page, kind] = seen.get((page, kind), 0) + 1
            if language in (None, kind):
                found.append(Block(page, seen[page, kind], kind, text))
    return found


def named(page: str, beginning: str, language: str) -> str:
    """The text of the block of a page that begins with these words."""
    (text,) = (one.text for one in blocks(language) if one.page == page and one.text.startswith(beginning))
    return text
