"""Claim: on one GPU the tests pass, and training steps take at most 1.05 times as long as plain PyTorch loops.

One command measures all that needs a GPU, in at most eight minutes: ``python benchmarks/gpu.py``, or with names of
sections. The repository is used in place, nothing is installed or downloaded. Each section (``gpu_sections.py``) is a
process of its own with a time limit, so that one that fails, hangs or loses the GPU costs only itself:

- ``tests``: tests/gpu: mixed precision, the CPU's losses, synchronized batch norm, resuming in the same bits, export.
- ``resnet50``, ``vit_small``: images/s in bf16, channels_last, compiled, and those of timm's train.py; MFU.
- ``reid``, ``faster_rcnn``: steps compared with plain loops.
- ``data``: waiting for data in a training from JPEG files, with ``data.augment_on: workers`` and ``device``.
- ``decode``: JPEGs by nvJPEG and video by NVDEC, compared with the CPU.
- ``graphs``: whether CUDA graphs help small networks.

Sides of a comparison take turns in rounds in one process; memory is the peak of a step above what is held between
steps. With the environment variable OUT, the results are also in $OUT/gpu.json. The exit status is 1 if a check failed
or a section broke, and 2 if a library is missing. ``--tiny`` runs all of it on any machine with small networks, which
measures nothing, but shows that it works.

In addition to torch, torchvision, timm, NumPy, PyYAML, rich, safetensors and scikit-learn it needs the
wheels annotated-types, pydantic, pydantic-core, typing-inspection and simplejpeg; ``tests`` needs pytest, hypothesis
and typer, of ``decode`` the video part needs av.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUDGET = 465
"""Seconds of all sections."""
LIMITS = {
    "tests": 150,
    "resnet50": 130,
    "vit_small": 110,
    "reid": 50,
    "faster_rcnn": 60,
    "data": 90,
    "decode": 40,
    "graphs": 90,
}
"""Seconds of each section, the most important first."""
REQUIRED = (
    *("torch", "torchvision", "timm", "numpy", "yaml", "rich", "safetensors", "sklearn", "huggingface_hub"),
    *("annotated_types", "pydantic", "pydantic_core", "typing_inspection", "typing_extensions", "simplejpeg", "fsspec"),
)


def run_section(name: str, limit: float, tiny: bool) -> dict[str, Any]:
    """Run a section in a process of its own; return its results, ``failed`` and ``skipped`` (texts) among them."""
    with tempfile.TemporaryDirectory() as folder:
        file, started = Path(folder) / "results.json", time.monotonic()
        words = [sys.executable, "-u", HERE / "gpu_sections.py", name, "--json", file, *(["--tiny"] if tiny else [])]
        paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = subprocess.Popen(words, env=environment, process_group=0)
        try:
            problem = f"exit status {process.returncode}" if process.wait(limit) else ""
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers and programs that it has started
                process.wait()
        results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if problem and not results.get("failed"):
            # Less than its limit was left: nothing is wrong with it.
            results["skipped" if problem.startswith("stopped") and limit < LIMITS[name] else "failed"] = [problem]
        return {"seconds": round(time.monotonic() - started, 1), **results}


def describe_machine() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{device}; {len(os.sched_getaffinity(0))} cores; Python {sys.version.split()[0]}, torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    )


def main(words: list[str]) -> int:
    """Run the sections named in ``words``, or all; return the exit status."""
    tiny, names = "--tiny" in words, [word for word in words if word != "--tiny"] or list(LIMITS)
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: these libraries are missing: {', '.join(missing)}", flush=True)
        return 2
    machine = describe_machine()
    print(machine, flush=True)
    if "no GPU" in machine and not tiny:
        print("nothing is measured (--tiny shows that it works)")
        return 0
    out, started, results = os.environ.get("OUT"), time.monotonic(), dict[str, Any](machine=machine)
    summary, scale = [], 10 if tiny else 1  # a slow machine is no reason to fail where nothing is measured
    for name in names:
        print(f"\n== {name}, {time.monotonic() - started:.0f} s after the start", flush=True)
        left = BUDGET * scale - (time.monotonic() - started)
        limit = min(LIMITS[name] * scale, left)
        own = {"skipped": ["no time left"]} if left < 10 else run_section(name, limit, tiny)
        results[name] = own
        outcome = next((f"{key}: {'; '.join(own[key])}" for key in ("failed", "skipped") if own.get(key)), "ok")
        summary.append(f"  {name:<12} {own.get('seconds', 0):6.1f} s  {outcome}")
        if out:
            (Path(out) / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    print("\n== summary", *summary, sep="\n", flush=True)
    return int(any(results[name].get("failed") for name in names))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the section ends, too
    sys.exit(main(sys.argv[1:]))
