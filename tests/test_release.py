"""A release: one version everywhere, its section of the changelog, and a workflow that publishes what CI tested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import opabinia
from scripts.release import PLACES, ROOT, notes, problems

WORKFLOWS = ROOT / ".github" / "workflows"
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.1.0] - 2027-01-31\n\n- Second.\n\n## [1.0.0] - 2027-01-01\n\n- First.\n"
)


def project(folder: Path, version: str) -> Path:
    """Write files of a project with this version."""
    for name, line in (
        ("pyproject.toml", f'[project]\nversion = "{version}"  # here\n'),
        ("opabinia/runtime/version.py", f'__version__ = "{version}"\n'),
        ("CITATION.cff", f"cff-version: 1.2.0\nversion: {version}\n"),
        ("CHANGELOG.md", CHANGELOG),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(line)
    return folder


@pytest.mark.parametrize(("version", "text"), [("1.1.0", "- Second."), ("1.0.0", "- First."), ("1.2.0", "")])
def test_notes_are_the_section_of_the_version(version: str, text: str, tmp_path: Path) -> None:
    assert notes(version, project(tmp_path, "1.1.0")) == text


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    root = project(tmp_path, "1.1.0")
    assert problems("1.1.0", root) == []
    assert problems("1.0.0", root) == [f"{name}: version 1.1.0, not 1.0.0" for name in PLACES]
    assert problems("1.2.0", root)[-1] == "CHANGELOG.md: no section '## [1.2.0] - YYYY-MM-DD'"


def test_this_version_lacks_a_section_at_most() -> None:
    assert [line for line in problems(opabinia.__version__) if not line.startswith("CHANGELOG.md")] == []


def test_the_citation_has_its_fields() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"


def test_the_workflow_publishes_the_tested_wheel_without_a_token() -> None:
    workflow: dict[Any, Any] = yaml.safe_load((WORKFLOWS / "release.yml").read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    permissions = {name: job["permissions"] for name, job in jobs.items() if "permissions" in job}
    assert permissions == {"publish": {"id-token": "write"}, "release": {"contents": "write"}}
    assert jobs["checks"]["uses"] == "./.github/workflows/ci.yml" and "checks" in jobs["publish"]["needs"]
    text = (WORKFLOWS / "release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text and "password" not in text
    used = [step["uses"] for job in jobs.values() for step in job.get("steps", []) if "uses" in step]
    other = [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)]
    assert other == ["pypa/gh-action-pypi-publish@release/v1"]
    ci = yaml.safe_load((WORKFLOWS / "ci.yml").read_text(encoding="utf-8"))
    assert "workflow_call" in ci[True]  # YAML 1.1 reads the key `on` as a boolean
    uploaded = {step["with"]["name"] for step in ci["jobs"]["wheel"]["steps"] if "upload" in step.get("uses", "")}
    assert "wheel" in uploaded
