"""The set-up holds together: pins, licence, package data, version; and no file belongs to one machine."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import opabinia

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]

# An address of a package index, and a folder that only one machine has.
OF_ONE_MACHINE = re.compile(
    r"https?://[\w.-]+(?:/[\w.-]+)*/(?:simple|packages|whl)\b|--(?:(?:extra-)?index-url|find-links)"
    r"|(?<![\w.])/(?:home|Users|root|work)/\w|\b[A-Z]:\\Users\\"
)


@pytest.mark.parametrize("line", [*PYPROJECT["build-system"]["requires"], *PROJECT["dependencies"], *EXTRAS])
def test_every_dependency_is_pinned(line: str) -> None:
    asked = Requirement(line)
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(asked.name)]
    assert pins, f"{line} is not in constraints.txt; run `make lock`"
    for pin in pins:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is not one exact version from an index"
        assert asked.specifier.contains(str(pin.specifier)[2:]), f"{pin} is not what pyproject.toml asks for: {line}"


def imported_packages() -> Iterator[tuple[str, Path]]:
    for path in Path(opabinia.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).split(".")[0], path
            elif isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)


def test_every_package_that_is_imported_is_a_dependency() -> None:
    """One that only another package brings along goes away with the next version of that other package."""
    homes = {"faiss": ["faiss-cpu"], **packages_distributions()}  # extras that are called otherwise may be missing here
    declared = {canonicalize_name(Requirement(line).name) for line in [*PROJECT["dependencies"], *EXTRAS]}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in imported_packages()
        if name not in {*sys.stdlib_module_names, "opabinia"}
        and not declared & {canonicalize_name(home) for home in homes.get(name, [name])}
    }
    assert not missing


def text_files() -> Iterator[tuple[Path, str]]:
    """What git tracks, or would if it were told to."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout")
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and b"\0" not in (data := path.read_bytes()):
            yield path.relative_to(ROOT), data.decode("utf-8", errors="replace")


def test_no_file_belongs_to_one_machine() -> None:
    read = dict(text_files())
    assert Path("pyproject.toml") in read
    found = {f"{path}: {match[0]}" for path, text in read.items() for match in OF_ONE_MACHINE.finditer(text)}
    assert not found


@pytest.mark.parametrize("path", ["/{}/me/data", "see /{}/x.py", 'root: "/{}/data"', "https://a.org/b/{}/"])
def test_such_a_line_would_be_found(path: str) -> None:
    """The samples are put together here, so that this file does not hold what it forbids."""
    part = "simple" if path.startswith("https") else "home"
    assert OF_ONE_MACHINE.search(path.format(part))


@pytest.mark.parametrize("text", ["https://arxiv.org/abs/1409.0575", "runs/home/x", "--no-emit-index-url", "/data/x"])
def test_an_ordinary_line_would_not(text: str) -> None:
    assert not OF_ONE_MACHINE.search(text)


def test_licence_is_the_unchanged_apache_2() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_two_versions_agree() -> None:
    assert opabinia.__version__ == PROJECT["version"]


def test_recipes_are_found_where_the_package_is_installed() -> None:
    package = files("opabinia")
    assert package.joinpath("py.typed").is_file()
    tasks = [folder for folder in package.joinpath("recipes").iterdir() if folder.is_dir()]
    assert any(file.name.endswith(".yaml") for task in tasks for file in task.iterdir())


@pytest.mark.slow
def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy, because building leaves folders behind
    shutil.copytree(ROOT / "opabinia", tree / "opabinia", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*wheel, "--wheel-dir", tmp_path, tree], check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        packed = {name for name in archive.namelist() if name.startswith("opabinia/")}
    files_here = {path for path in (tree / "opabinia").rglob("*") if path.is_file()}
    assert packed == {path.relative_to(tree).as_posix() for path in files_here}
