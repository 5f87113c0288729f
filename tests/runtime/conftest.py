"""Remote storage within one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from opabinia.runtime import storage


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file system in memory, and an empty folder of local copies."""
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/", recursive=True)
    memory.pseudo_dirs[:] = [""]
