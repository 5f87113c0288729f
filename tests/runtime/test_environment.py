import platform
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from opabinia.runtime import environment
from opabinia.runtime.environment import LIBRARIES, describe_environment, library_versions

CPU = torch.device("cpu")


def test_library_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = library_versions()
    assert list(versions) == ["python", *LIBRARIES]
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__.split("+")[0] or versions["torch"] == torch.__version__
    assert "not installed" not in versions.values()

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", absent)
    assert library_versions()["timm"] == "not installed"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True, capture_output=True
    )


def test_the_commit_and_uncommitted_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "  git " not in describe_environment(CPU, 1)
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "x")
    lines = dict(line.split(maxsplit=1) for line in describe_environment(CPU, 3).splitlines())
    assert (len(lines["git"]), lines["threads"], lines["device"]) == (40, "3", "cpu")
    assert {"python", "torch", "platform", "cpus", "command"} <= set(lines)
    (tmp_path / "file").write_text("2")
    assert "with uncommitted changes" in describe_environment(CPU, 1)
    monkeypatch.setenv("PATH", "")
    assert "  git " not in describe_environment(CPU, 1)
