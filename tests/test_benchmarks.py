"""Benchmarks in their quick modes: one that trains does not train finished runs again; that of GPUs runs anywhere."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["overhead.py"],
        ["steps.py"],
        ["evaluation.py", "scores"],
        ["memory.py"],
        pytest.param(["compiled.py"], marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")),
    ],
)
def test_quick_mode(words: list[str]) -> None:
    subprocess.run([sys.executable, ROOT / "benchmarks" / words[0], *words[1:], "--quick"], check=True)


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


# --- gpu.py: without a GPU its sections run with small networks, and measure nothing ----------------------------------


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks by name, as if it had been started with ``--tiny``."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["gpu_sections.py", "resnet50", "--tiny"])
    yield importlib.import_module
    for name in ("all", "gpu", "gpu_sections"):
        sys.modules.pop(name, None)


def test_notes_below_an_output_stay(benchmarks: Any) -> None:
    results = "# Measured\n\n## a\n\nClaim.\n\n```\n1\n```\n\nA note.\n\n```\nmore\n```\n\n## b\n\n```\n2\n```\n"
    updated = benchmarks("all").with_section(results, "## a\n\nClaim.\n\n```\n3\n```\n")
    assert updated.endswith(results.partition("## a")[2].replace("1", "3"))
    assert benchmarks("all").with_section(updated, "## b\n\n```\n4\n```\n") == updated.replace("2", "4")


@pytest.mark.filterwarnings("ignore")
def test_sections_of_the_gpu_benchmark(benchmarks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sections = benchmarks("gpu_sections")
    for name in ("resnet50", "graphs", "decode", "data"):
        sections.SECTIONS[name]()
    assert list(sections.SECTIONS) == list(benchmarks("gpu").LIMITS)
    printed, results = capsys.readouterr().out, sections.RESULTS
    for text in ("our step takes", "MFU", "CUDA graphs", "waits for data", "augment_on: device", "skipped: nvJPEG"):
        assert text in printed
    assert "failed" not in results and results["ours"]["seconds"] > 0


def test_a_section_that_breaks_costs_only_itself(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gpu = benchmarks("gpu")
    code = """import json, sys, time
        name, file = sys.argv[1], sys.argv[3]
        open(file, "w").write(json.dumps({"value": 1, **({"failed": ["no"]} if name == "resnet50" else {})}))
        name == "reid" and sys.exit(3)
        name == "data" and time.sleep(60)
    """
    (tmp_path / "gpu_sections.py").write_text("\n".join(map(str.strip, code.splitlines())))
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    monkeypatch.setattr(gpu, "LIMITS", dict.fromkeys(("tests", "resnet50", "reid", "data"), 20) | {"data": 0.1})
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu.main(["--tiny", "tests", "resnet50", "reid", "data"]) == 1
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["tests"]["value"] == 1 and "failed" not in results["tests"]
    failures = [results[name]["failed"] for name in ("resnet50", "reid", "data")]
    assert failures == [["no"], ["exit status 3"], ["stopped after 1 s"]]
    assert "== summary" in capfd.readouterr().out
    monkeypatch.setattr(gpu, "REQUIRED", ("torch", "no_such_library"))
    assert gpu.main([]) == 2


@pytest.mark.slow
def test_the_gpu_benchmark_as_a_whole(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--tiny"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("== summary")[1].count(" ok\n") == 7, "decode is skipped in part"
