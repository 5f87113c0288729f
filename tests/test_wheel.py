"""The wheel holds the whole package, and works where it is the only Opabinia that is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

COLORS = {"blue": (40, 60, 200), "red": (200, 60, 40)}
"""The classes of the generated images: noise around a color."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """The names of all files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The metadata that pip reads from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


# --- contents ---------------------------------------------------------------------------------------------------------


def test_it_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == f"opabinia-{PROJECT['version']}-py3-none-any.whl"


def test_it_carries_every_file_of_the_package(names: set[str]) -> None:
    """Files that git ignores would be missing, so the folder is compared as it is."""
    here = {path for path in (ROOT / "opabinia").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    packed = {name for name in names if name.startswith("opabinia/")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in here}


@pytest.mark.parametrize(
    "pattern",
    [
        "opabinia/py.typed",
        "opabinia/recipes/*/*.yaml",
        "opabinia/visualization/report/templates/*.html",
        "opabinia/visualization/report/templates/*.css",
        "opabinia/data/check/templates/*.html",
        "opabinia/inference/serving/page/*.js",
    ],
)
def test_files_that_are_no_python_are_inside(names: set[str], pattern: str) -> None:
    assert any(Path(name).match(pattern) for name in names)


def test_nothing_else_is_inside(names: set[str]) -> None:
    assert {name.partition("/")[0] for name in names} == {"opabinia", f"opabinia-{PROJECT['version']}.dist-info"}


def test_metadata_offers_the_extras(metadata: Message) -> None:
    offered = metadata.get_all("Provides-Extra", [])
    assert {"all", "export", "search", "serve"} <= {extra.replace("-", "_") for extra in offered}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"


# --- installed --------------------------------------------------------------------------------------------------------

Run = Callable[..., str]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A function that runs a program of a virtual environment with the wheel, in a folder outside the checkout.

    The dependencies are those of the running environment. Its packages come after the environment's own, and its
    editable install of this checkout is not among them, because .pth files are read in site-packages only.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", symlinks=True)
    binaries = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    packages = sysconfig.get_path("purelib", vars={"base": str(folder / "env")})
    dependencies = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (Path(packages) / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")
    install = ["--python", str(binaries / "python"), "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *install], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *words: str) -> str:
        done = subprocess.run(
            [str(binaries / program), *words], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    write_images(folder / "colors")
    return run


def write_images(folder: Path) -> None:
    """Write ``<split>/<class>/*.png``, 12 images of each class to train on and 4 to validate."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for name, color in COLORS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(generator.normal(color, 40, (40, 48, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")


@pytest.mark.slow
def test_the_installed_package_is_complete(installed: Run) -> None:
    path = Path(installed("python", "-c", "import opabinia; print(opabinia.__file__)").strip())
    assert ROOT not in path.parents
    recipes = ROOT / "opabinia" / "recipes"
    names = [file.relative_to(recipes).with_suffix("").as_posix() for file in recipes.rglob("*.yaml")]
    listed = re.split(r"[\s,]+", installed("opabinia", "config", "list"))
    assert "classification/digits" in listed
    tasks = {name.partition("/")[0] for name in listed if "/" in name}
    assert {name for name in names if name.partition("/")[0] in tasks} <= set(listed)


@pytest.mark.slow
def test_it_trains_evaluates_predicts_and_reports(installed: Run, tmp_path: Path) -> None:
    data = ["vars={root: colors, size: 32, enlarged: 36}", "data.batch_size=8", "data.num_workers=0"]
    model = ["task.backbone={name: timm, model: test_resnet}", "optimizer.lr=0.003", "schedule=constant"]
    length = ["train.length=24it", "train.device=cpu", "--name", "wheel"]
    installed("opabinia", "train", "classification/image_folder", *data, *model, *length)
    run = "runs/classification/image_folder/wheel"
    assert "val/top1" in installed("opabinia", "eval", run)
    installed("opabinia", "predict", run, "colors/val", "--out", str(tmp_path))
    lines = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    predictions = [json.loads(line) for line in lines]
    correct = [entry["top"][0]["class"] == Path(entry["path"]).parent.name for entry in predictions]
    assert len(correct) == 8
    assert sum(correct) >= 7  # the colors are easy to tell apart
    assert "report.html" in installed("opabinia", "report", run)
