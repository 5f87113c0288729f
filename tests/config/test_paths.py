"""Paths that must exist are checked before anything is built or imported."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.config import catalog, check, compose
from opabinia.config.paths import missing_paths
from opabinia.data.sources import ImageFolder


def problems(*overrides: str, recipe: str = "classification/image_folder") -> list[str]:
    tree = compose(recipe, overrides)
    parts = catalog(tree.plugins)
    return [str(problem) for problem in missing_paths(check(tree, parts), parts)]


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes splits of two classes with an image each, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def make(*splits: str) -> Path:
        for split in splits:
            for name in ("cat", "dog"):
                (folder := Path("pets", split, name)).mkdir(parents=True)
                Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "1.png")
        return Path("pets")

    return make


@pytest.mark.parametrize("names", [["validation", "valid", "test"], ["valid", "test"], ["test"], ["val", "validation"]])
def test_a_validation_folder_of_another_name_is_used(
    pets: Callable[..., Path], caplog: pytest.LogCaptureFixture, names: list[str]
) -> None:
    root = pets("train", *names)
    assert problems(f"vars.root={root}") == []
    caplog.set_level("INFO", "opabinia")
    assert ImageFolder(root=root / "val").root.name == names[0]
    assert (f"there is no pets/val: pets/{names[0]} is used" in caplog.text) == (names[0] != "val")


def test_a_missing_folder_is_reported_with_the_existing_ones(pets: Callable[..., Path]) -> None:
    (problem,) = problems(f"vars.root={pets('train', 'eval')}")
    assert "data.val.source.root: there is no pets/val; the nearest existing folder is" in problem
    assert problem.endswith("which holds eval, train; set vars.root or vars.val")
    assert len(problems("vars.root=nowhere")) == 2


def test_paths_of_nested_parts_are_checked(tmp_path: Path) -> None:
    source = "data.train.source={name: concat, sources: [{name: images, root: a}, {name: table, file: b.csv}]}"
    messages = problems(source, "data.val=null", f"vars.root={tmp_path}")
    assert [text.partition(": there")[0].rpartition(" ")[2] for text in messages] == [
        "data.train.source.sources.0.root",
        "data.train.source.sources.1.file",
    ]


WRONG_PATHS = {
    "config check classification/image_folder vars.root=no": "there is no no/train",
    "train classification/image_folder vars.root=no": "there is no no/train",
    "train classification/digits --resume --name no": "--resume: there is no run runs/classification/digits/no to",
    "eval no": "there is no folder no",
    "eval . data.val.source=images data.val.source.root=no": "data.val.source.root: there is no no",
    "extract . data.val.source=images data.val.source.root=no": "data.val.source.root: there is no no",
    "predict . no.png": "there is no file or folder no.png",
    "search . gallery no.png": "there is no file or folder gallery",
}

PROGRAM = """
import sys
from opabinia.cli import main
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit as leaving:
        print("status", leaving.code, file=sys.stderr)
print("torch" in sys.modules)
"""


def test_commands_report_wrong_paths_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opabinia", "config", "check", "classification/digits"]
    subprocess.run(command, check=True, capture_output=True)  # writes the catalog's cache
    (tmp_path / "config.yaml").write_text("base: classification/digits\n")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, input="\n".join(WRONG_PATHS), capture_output=True, text=True
    )
    assert result.stdout == "False\n", result.stderr
    *messages, remainder = result.stderr.split("status 2\n")
    assert remainder == "" and len(messages) == len(WRONG_PATHS)
    for message, expected in zip(messages, WRONG_PATHS.values(), strict=True):
        assert expected in message and "Traceback" not in message
