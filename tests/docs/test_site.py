"""Links lead somewhere, every page stands in the site's list, and the site can be built."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
MADE = {"api/parts.md", "measured.md"}
"""Pages that scripts/docs_parts.py makes."""


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]+`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
        if link.startswith(("https://", "http://")) or link.partition("#")[0] in MADE | {f"../{one}" for one in MADE}:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in _anchors(target), link


def test_every_page_stands_in_the_list() -> None:
    def pages(nav: object) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        inside = nav.values() if isinstance(nav, dict) else nav
        return [page for one in inside for page in pages(one)]  # type: ignore[attr-defined]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) - MADE == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    program = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "speed.html", "api/parts/loss.html"} <= {str(page.relative_to(site)) for page in pages}
    for page in pages:
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_search_finds_something_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially("multigrid")
    page.get_by_text("matching documents").wait_for()
    assert not wrong
