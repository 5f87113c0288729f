"""Benchmarks in their quick modes: one that trains does not train finished runs again; that of GPUs runs anywhere."""

import importlib
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["overhead.py"],
        ["steps.py"],
        ["evaluation.py", "scores"],
        ["memory.py"],
        pytest.param(
            ["detector_latency.py"],
            marks=pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is absent"),
        ),
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
    for name in ("all", "gpu", "gpu_sections", "peers", "planning"):
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


# --- peers.py: a folder of scripts that stand for other systems -------------------------------------------------------


def test_scores_of_other_systems(benchmarks: Any, tmp_path: Path) -> None:
    peers = benchmarks("peers")
    for name in ("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"):
        path = tmp_path / "validation" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    classes = {"validation/cat/1.png": "cat", "validation/cat/2.png": "cat", "validation/dog/3.png": "dog"}
    with pytest.raises(ValueError, match="3 images are predicted, and the validation data has 4"):
        peers.top1(tmp_path, tmp_path, {"classes": classes})
    assert peers.top1(tmp_path, tmp_path, {"classes": classes | {"validation/dog/4.png": "cat"}}) == 0.75
    assert peers.top1(tmp_path, tmp_path, {"score": 0.5}) == 0.5

    box = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20]}
    truth = {
        "images": [{"id": 1, "file_name": "1.png", "height": 64, "width": 64}],
        "annotations": [{**box, "id": 1, "area": 400, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "cell"}],
    }
    file = tmp_path / "annotations" / "instances_val.json"
    file.parent.mkdir()
    file.write_text(json.dumps(truth))
    assert peers.average_precision(tmp_path, tmp_path, {"detections": [{**box, "score": 0.9}]}) == pytest.approx(1)
    assert peers.average_precision(tmp_path, tmp_path, {"detections": []}) == 0

    for folder, rows in (("val/labels", [[0, 0], [1, 255]]), ("out/maps", [[0, 1], [1, 1]])):
        (tmp_path / folder).mkdir(parents=True)
        Image.fromarray(np.array(rows, np.uint8)).save(tmp_path / folder / "1.png")
    (tmp_path / "classes.txt").write_text("background\ndigit\nnever\n")
    assert peers.mean_iou(tmp_path, tmp_path / "out", {"maps": "maps"}) == 0.5

    np.save(tmp_path / "query.npy", np.array([[0.0, 1.0]], np.float32))
    np.save(tmp_path / "gallery.npy", np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 4.0]], np.float32))
    names = {"query": ["7_c1_1.jpg"], "gallery": ["7_c1_2.jpg", "8_c2_3.jpg", "7_c2_4.jpg"]}
    assert peers.mean_average_precision(tmp_path, tmp_path, {"embeddings": names}) == 0.5


def test_a_peer_that_fails_costs_only_itself(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = benchmarks("peers")
    (tmp_path / "good.py").write_text(
        "import json, sys\n"
        "folder, weights, seconds, seed, out, word = sys.argv[1:]\n"
        "results = {'note': f'{word} for {seconds} s', 'score': int(seed) / 4}\n"
        "open(f'{out}/results.json', 'w').write(json.dumps(results))\n"
    )
    (tmp_path / "bad.py").write_text("raise SystemExit('out of paint')")

    def side(script: str, needs: str = "pytest", **options: Any) -> Any:
        return peers.Side(script, "classification", (needs,), ("word",), **options)

    ours = []

    def run_ours(trial: Any, out: Path) -> Any:
        ours.append(trial.seed)
        return trial.result(peers.OURS, 0.5, "", {"wall": 7.0, "cpu": 6.0, "memory": 2**30})

    sides = {
        "good": side("good.py"),
        "bad": side("bad.py"),
        "missing": side("good.py", "no_such_library"),
        "unnamed": side("good.py", checkout="timm"),
        "elsewhere": peers.Side("good.py", "detection", ()),
    }
    for name, value in {"SCRIPTS": tmp_path, "SIDES": sides, "run_ours": run_ours}.items():
        monkeypatch.setattr(peers, name, value)
    monkeypatch.setattr(peers, "write_weights", lambda folder: None)
    monkeypatch.setattr(peers, "dataset_folder", lambda name, temporary: tmp_path)
    monkeypatch.setattr(sys, "argv", ["peers.py", "digits", "--seeds", "1,2", "--out", str(tmp_path / "out")])
    assert peers.main() == 1
    first = capsys.readouterr()
    assert first.err.count("out of paint") == 2
    table = [line.split("|")[2:] for line in first.out.splitlines()[2:] if line.startswith("|")]
    cells = {line[0].strip(): line[1].strip() for line in table}
    assert cells == {
        "Opabinia": "0.500 ± 0.000",
        "good": "0.375 ± 0.177",
        "bad": "failed",
        "missing": "no_such_library not installed",
        "unnamed": "no --timm",
    }
    assert "word for 7.0 s" in first.out and f"- good: pytest {pytest.__version__}" in first.out
    peers.main()
    assert ours == [1, 2] and capsys.readouterr().out == first.out, "finished runs are not repeated"


def test_time_of_a_peer(benchmarks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "peers")
    module = benchmarks("job")
    now = module.psutil.Process().create_time() + 100.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    job = module.Job(Path("data"), Path("weights"), 200.0, 0, Path("out"), ())
    assert job.left == pytest.approx(100) and job.fitting(30, reserve=5) == 3 and job.fitting(1000) == 1
    used = []
    for share, batch in job.batches("ab", reserve=20):
        used.append((round(share, 2), batch))
        now += 30
    assert used == [(0, "a"), (0.38, "b"), (0.75, "a")]
    assert module.seconds_per_step([0.0, 5.0, 6.0, 7.0]) == 1
    sys.modules.pop("job")
