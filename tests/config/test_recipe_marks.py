"""Every packaged recipe has one mark, and its mark claims no more than its first lines and the golden losses show."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from opabinia.config.compose import PACKAGED, packaged_names
from opabinia.config.recipe_marks import recipe_marks
from opabinia.runtime.json_files import InvalidFile
from tests.docs.pages import ROOT

MARKS = json.loads((PACKAGED / "marks.json").read_text(encoding="utf-8"))


def first_lines(recipe: str) -> str:
    """Return the comment at the head of a recipe as one line."""
    text = (PACKAGED / f"{recipe}.yaml").read_text(encoding="utf-8")
    comment = re.match(r"(#.*\n)+", text)
    return re.sub(r"\n?# ", " ", comment[0]) if comment else ""


def test_every_recipe_has_one_mark() -> None:
    assert sorted([*MARKS["trained"], *MARKS["published"], *MARKS["steps"]]) == packaged_names()
    assert list(recipe_marks()) == packaged_names()
    assert [list(names) for names in MARKS.values()] == [sorted(names) for names in MARKS.values()]


@pytest.mark.parametrize("recipe", packaged_names())
def test_ten_steps_of_the_recipe_are_tested(recipe: str) -> None:
    """``tests/golden/test_losses.py`` runs them."""
    assert len((ROOT / "tests" / "golden" / "losses" / f"{recipe}.txt").read_text(encoding="utf-8").split()) == 10


@pytest.mark.parametrize("recipe", MARKS["published"])
def test_a_published_score_is_named_as_not_run_here(recipe: str) -> None:
    assert re.search(r"not re-run\s+here", first_lines(recipe))


@pytest.mark.parametrize("recipe", MARKS["trained"])
def test_a_trained_recipe_has_its_score_and_a_date(recipe: str) -> None:
    assert re.search(r"\b[01]\.\d{3}", first_lines(recipe))
    assert date(2026, 11, 20) <= date.fromisoformat(MARKS["trained"][recipe]) <= date.today()


def test_descriptions(tmp_path: Path) -> None:
    table = {"trained": {"b": "2026-11-21"}, "published": ["c"], "steps": ["a"]}
    (tmp_path / "marks.json").write_text(json.dumps(table))
    assert recipe_marks(tmp_path) == {
        "a": "ten steps run",
        "b": "trained to the end on 2026-11-21",
        "c": "ten steps run; published score not reproduced",
    }
    (tmp_path / "marks.json").write_text(json.dumps(table | {"steps": "a"}))
    with pytest.raises(InvalidFile, match=r"marks\.json: steps"):
        recipe_marks(tmp_path)
