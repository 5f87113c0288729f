"""The set-up is consistent: pins, extras, license, version, Dockerfile, CI workflow; no file belongs to one machine."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import opabinia

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_SMALL_DEVICES = {"coreml", "executorch", "litert"}
"""They are large, and LiteRT asks for an older torch."""
FOR_DEVELOPERS = {"bench", "browser", "dev", "docs", "parity", "storage"}
EXTERNAL = [line for lines in EXTRAS.values() for line in lines if Requirement(line).name != "opabinia"]
"""What the extras install, without the references of one extra to another."""

FOR_TESTS = [line for name in ("dev", "docs", "serve") for line in EXTRAS[name] if line in EXTERNAL]
INSTALLED_BY_MAKE = [*PROJECT["dependencies"], *FOR_TESTS]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()]

# An address of a package index, and a folder that only one machine has.
OF_ONE_MACHINE = re.compile(
    r"https?://[\w.-]+(?:/[\w.-]+)*/(?:simple|packages|whl)\b|--(?:(?:extra-)?index-url|find-links)"
    r"|(?<![\w.])/(?:home|Users|root|work)/\w|\b[A-Z]:\\Users\\"
)


# --- dependencies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [*PYPROJECT["build-system"]["requires"], *INSTALLED_BY_MAKE])
def test_what_make_installs_is_pinned(line: str) -> None:
    asked = Requirement(line)
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(asked.name)]
    assert pins, f"{line} is not in constraints.txt; run `make lock`"
    for pin in pins:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), f"{pin} is not one exact version from an index"
        assert asked.specifier.contains(str(pin.specifier)[2:]), f"{pin} is not what pyproject.toml asks for: {line}"


def test_no_pin_is_a_beta_version() -> None:
    assert [str(pin) for pin in PINS if Version(str(pin.specifier)[2:]).is_prerelease] == []


@pytest.mark.parametrize("name", ["torch", "torchvision"])
@pytest.mark.parametrize("build", ["cpu", "cu130"])
def test_builds_for_other_devices_satisfy_the_pins(name: str, build: str) -> None:
    (pin,) = (pin for pin in PINS if pin.name == name)
    (asked,) = (Requirement(line) for line in PROJECT["dependencies"] if Requirement(line).name == name)
    local = f"{str(pin.specifier)[2:]}+{build}"
    assert pin.specifier.contains(local)
    assert asked.specifier.contains(local)


def test_the_extra_all_has_every_extra_for_users() -> None:
    (everything,) = (Requirement(line) for line in EXTRAS["all"])
    assert everything.name == "opabinia"
    assert everything.extras == EXTRAS.keys() - FOR_DEVELOPERS - FOR_SMALL_DEVICES - {"all"}


def test_the_install_page_describes_every_extra_for_users() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([a-z0-9_]+)` \|", page, flags=re.MULTILINE))
    assert rows == EXTRAS.keys() - FOR_DEVELOPERS


def test_messages_name_an_existing_extra() -> None:
    package = Path(opabinia.__file__).parent
    texts = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    named = {(name, path) for path, text in texts.items() for name in re.findall(r"'opabinia\[(\w+)\]'", text)}
    assert named
    assert {f"{path.relative_to(ROOT)}: {name}" for name, path in named if name not in EXTRAS} == set()


def imported_packages() -> Iterator[tuple[str, Path]]:
    for path in Path(opabinia.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                yield str(node.module).split(".")[0], path
            elif isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)


def test_every_package_that_is_imported_is_a_dependency() -> None:
    """A package that only another dependency installs may be missing with that dependency's next version."""
    homes = {
        "faiss": ["faiss-cpu"],
        "azure": ["azure-storage-blob"],
        **packages_distributions(),
    }  # extras with another import name may be missing here
    declared = {canonicalize_name(Requirement(line).name) for line in [*PROJECT["dependencies"], *EXTERNAL]}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for name, path in imported_packages()
        if name not in {*sys.stdlib_module_names, "opabinia"}
        and not declared & {canonicalize_name(home) for home in homes.get(name, [name])}
    }
    assert not missing


# --- files ------------------------------------------------------------------------------------------------------------


def text_files() -> Iterator[tuple[Path, str]]:
    """Yield the text files that git tracks or would add."""
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
    """The samples are assembled here, so that this file does not contain what it forbids."""
    part = "simple" if path.startswith("https") else "home"
    assert OF_ONE_MACHINE.search(path.format(part))


@pytest.mark.parametrize(
    "text",
    [
        *("https://arxiv.org/abs/1409.0575", "runs/home/x", "--no-emit-index-url", "/data/x"),
    ],
)
def test_an_ordinary_line_would_not(text: str) -> None:
    assert not OF_ONE_MACHINE.search(text)


def test_licence_is_the_unchanged_apache_2() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_two_versions_agree() -> None:
    assert opabinia.__version__ == PROJECT["version"]


# --- Dockerfile and CI workflow ---------------------------------------------------------------------------------------


def test_the_dockerfile_copies_existing_files() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "pyproject.toml" in copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed, f"{name} is ignored"


@pytest.mark.parametrize(
    ("backend", "size", "failed"),
    [
        ("cpu", "download of 0.4 GB", "the CPU builds of PyTorch; pip takes those with CUDA, a download of 3.2 GB"),
        ("", "download of 3.2 GB, 6 GB on disk (docs/install.md: CPU only)", "uv failed; trying pip"),
    ],
)
def test_make_setup_announces_what_it_installs(tmp_path: Path, backend: str, size: str, failed: str) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name, status in (("uv", 1), ("python", 0)):
        program = tmp_path / ".venv" / "bin" / name
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
    command = ["make", "-C", str(tmp_path), "setup", f"UV_TORCH_BACKEND={backend}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert size in shown and failed in shown


def workflow() -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def test_the_workflow_calls_existing_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    commands = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    called = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(commands)))
    assert called
    assert called <= targets


def test_the_workflow_has_few_permissions_and_pinned_actions() -> None:
    content = workflow()
    assert content["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in content["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+", action)] == []


def test_the_workflow_tests_all_supported_versions_of_python() -> None:
    versions = workflow()["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    classifiers = [f"Programming Language :: Python :: {version}" for version in versions]
    assert [line for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)] == classifiers
