"""Check that a version is ready to be released, and print its section of CHANGELOG.md.

    python scripts/release.py 0.1.0

The workflow `release.yml` runs this for a tag. Needs no installed package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "pyproject.toml": r'^version = "(.+?)"',
    "opabinia/runtime/version.py": r'^__version__ = "(.+?)"',
    "CITATION.cff": r"^version: (.+)$",
}
"""Files that state the version, and where."""


def problems(version: str, root: Path = ROOT) -> list[str]:
    """Return what is missing for a release of this version: one line for each file."""
    found = []
    for name, pattern in PLACES.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        stated = match[1] if match else None
        if stated != version:
            found.append(f"{name}: version {stated}, not {version}")
    if not notes(version, root):
        found.append(f"CHANGELOG.md: no section '## [{version}] - YYYY-MM-DD'")
    return found


def notes(version: str, root: Path = ROOT) -> str:
    """Return the text of the dated section of this version; empty without one."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## \[|\Z)"
    match = re.search(heading, text, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {Path(__file__).name} VERSION")
    if missing := problems(sys.argv[1]):
        sys.exit("\n".join(missing))
    print(notes(sys.argv[1]))
