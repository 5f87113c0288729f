"""What was run of each packaged recipe: the table ``recipes/marks.json``."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import TypedDict

from opabinia.config.compose import PACKAGED
from opabinia.runtime.json_files import read_json


class Marks(TypedDict):
    """The table by mark. Ten steps of every recipe are run by the tests, on small generated data.

    Attributes:
        trained: to the end, with the score in the recipe's first lines; the date of that score by recipe.
        published: recipes whose first lines have the score of a paper or of another system, which was not reproduced.
        steps: recipes without a score.
    """

    trained: dict[str, str]
    published: list[str]
    steps: list[str]


def recipe_marks(recipes: Path = PACKAGED) -> dict[str, str]:
    """Return what was run of each packaged recipe, in a few words, by its name.

    Raises:
        InvalidFile: the table is damaged.
    """
    marks = read_json(recipes / "marks.json", Marks)
    described = {name: f"trained to the end on {date}" for name, date in marks["trained"].items()}
    described |= dict.fromkeys(marks["published"], "ten steps run; published score not reproduced")
    described |= dict.fromkeys(marks["steps"], "ten steps run")
    return dict(sorted(described.items()))
