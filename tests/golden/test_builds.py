"""``opabinia config check --build`` reports no problems of the packaged recipes that are too long to be run."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opabinia.cli.commands import app
from opabinia.config.compose import packaged_names
from scripts.update_golden import smaller
from tests.golden.test_losses import NEEDS

LONG = ("classification/imagenet/", "detection/", "selfsup/", "video/kinetics/", "video/something", "video/charades/")
RECIPES = [name for name in packaged_names() if name.startswith(LONG)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_long_recipes_can_be_built(recipe: str, tmp_path: Path) -> None:
    if recipe in NEEDS and not find_spec(NEEDS[recipe]):
        pytest.skip(f"{NEEDS[recipe]} is not installed")
    overrides = [override for override in smaller(recipe, tmp_path / "data") if override != "vars.val_fraction=0"]
    result = CliRunner().invoke(app, ["config", "check", "--build", recipe, "data.num_workers=0", *overrides])
    assert result.exit_code == 0 and f"{recipe}: no problems" in result.output, result.output
