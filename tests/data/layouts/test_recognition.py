"""Folders in every layout are read as expected, and their sources open; others are one clear question or error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError, build, check, compose
from opabinia.config.catalog import Catalog, live_catalog
from opabinia.config.registry import Entry
from opabinia.config.types import Parameter
from opabinia.contracts import Source
from opabinia.data.layouts.layout import Section
from opabinia.data.layouts.recognition import recognize
from opabinia.training import builtin_parts as builtin_parts
from tests.data.layouts.cases import CASES, WRONG
from tests.data.layouts.folders import Case, Maker, Wrong

CATALOG = live_catalog()
COMMAND = Entry("command", "open", lambda source: source, (Parameter("source", {"kind": "part", "family": "source"}),))


def open_source(section: Section) -> Source:
    """Check and build a section, as a command does."""
    catalog = Catalog({**CATALOG.entries, "command": {"open": COMMAND}})
    config = check(compose({"source": dict(section)}), catalog, "open").config
    source = build(config, catalog, "open")()
    assert isinstance(source, Source)
    return source


def first_sample(source: Source) -> Any:
    return source[0] if "video" not in type(source).__name__.lower() else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layouts(case: Case, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    case.make(Maker(root))
    given: dict[str, Any] = dict(case.given)
    layout = recognize(root / case.file, **given)
    assert (layout.name, layout.task) == (case.layout, case.task)
    counts = {}
    for split in ("train", "val", "test"):
        section = getattr(layout, split)
        if section is not None:
            source = open_source(section)
            counts[split] = len(source)
            if case.classes is not None:
                assert list(source.classes) == list(case.classes)
    assert counts == {split: count for split in ("train", "val", "test") if (count := getattr(case, split)) is not None}
    notes = " ".join(layout.notes)
    assert all(part in notes for part in case.notes), notes
    if layout.classes:
        assert list(layout.classes) == list(open_source(layout.train).classes)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_questions_and_errors(case: Wrong, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    case.make(Maker(root))
    given: dict[str, Any] = dict(case.given)
    with pytest.raises(ConfigError) as caught:
        recognize(root / case.file, **given)
    message = str(caught.value)
    assert str(root) in message
    assert all(part in message for part in case.parts), message
    assert len(message.splitlines()) < 12
