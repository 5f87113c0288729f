"""Links and API paths are valid, every page is in the navigation, and the site can be built."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from opabinia import contracts

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
GENERATED = {"api/parts.md", "measured.md"}
"""Pages that scripts/docs_parts.py generates; it also generates one for each family in api/parts/."""
API_PATHS = [
    path for page in sorted((DOCS / "api").glob("*.md")) for path in re.findall(r"^::: (\S+)", page.read_text(), re.M)
]


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]+`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
        path, _, anchor = link.partition("#")
        if link.startswith(("https://", "http://")) or path in GENERATED or path.startswith("parts/"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in _anchors(target), link


@pytest.mark.parametrize("path", API_PATHS)
def test_api_paths_are_importable(path: str) -> None:
    names = path.split(".")
    for length in range(len(names), 0, -1):
        try:
            target: Any = importlib.import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            target = getattr(target, name)
        if inspect.isclass(target) or inspect.isfunction(target):  # mkdocstrings does not follow re-exports
            assert path == f"{target.__module__}.{target.__qualname__}"
        return
    pytest.fail(path)


def test_the_reference_covers_every_contract() -> None:
    documented = {path for path in API_PATHS if path.startswith("opabinia.contracts.")}
    for name in ("Task", "Evaluator", "Source", "Backbone", "Neck", "Detector", "Head", "Plan", "BatchSchedule"):
        assert getattr(contracts, name).__module__ in documented, name
    for name in ("Hook", "Run", "Logger", "MetricsLog", "CheckpointManager", "Step", "Video", "Sampler", "Clock"):
        assert getattr(contracts, name).__module__ in documented, name


def test_every_page_is_in_the_navigation() -> None:
    def pages(nav: object) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        children = nav.values() if isinstance(nav, dict) else nav
        return [page for child in children for page in pages(child)]  # type: ignore[attr-defined]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) - GENERATED == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    program = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_site_is_built_without_external_resources(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "performance.html", "api/parts/loss.html"} <= {str(page.relative_to(site)) for page in pages}
    for page in pages:
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(width: int, site: Path, browser: Any) -> None:
    """Tables and code scroll by themselves."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    wide = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(str(path.relative_to(site)))
    assert not wide


@pytest.mark.slow
@pytest.mark.parametrize("term", ["multigrid", "oriented boxes", "mixed precision", "exponential moving average"])
def test_a_search_works_without_a_server(term: str, site: Path, browser: Any) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").press_sequentially(term)
    page.get_by_text(re.compile(r"^\s*\d+ matching document")).wait_for()
    assert not errors
