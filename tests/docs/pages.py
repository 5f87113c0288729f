"""The fenced code blocks of README and docs/, by language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {"docs/log.md", "docs/design.md"}
"""Pages without code to copy: the record of experiments, and the design."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced code block.

    Attributes:
        page: path in the repository.
        number: of the blocks of this language on the page, from 1.
        language: the word behind the opening fence.
        text: the lines between the fences.
    """

    page: str
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}-{self.number}"


def blocks(language: str | None = None) -> list[Block]:
    """Return all blocks, or those of a language, without the pages of ``RECORDS``."""
    result, counts = [], dict[tuple[str, str], int]()
    for path in PAGES:
        page = str(path.relative_to(ROOT))
        if page in RECORDS:
            continue
        for kind, text in re.findall(r"^```([^\n]*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.S | re.M):
            counts[page, kind] = counts.get((page, kind), 0) + 1
            if language in (None, kind):
                result.append(Block(page, counts[page, kind], kind, text))
    return result


def block_text(page: str, beginning: str, language: str) -> str:
    """Return the text of the only block of a page that begins with ``beginning``."""
    (text,) = (block.text for block in blocks(language) if block.page == page and block.text.startswith(beginning))
    return text
