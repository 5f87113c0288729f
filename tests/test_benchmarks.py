"""A benchmark that trains has a quick mode, and does not train finished runs again."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_pretrained_segmentation(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "pretrained_segmentation.py"

    def table() -> str:
        words = [sys.executable, script, "--quick", "--out", tmp_path]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def finished() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("results.json")}

    first, runs = table(), finished()
    assert len(runs) == 4 and len(first.splitlines()) == 5
    assert table() == first and finished() == runs
