"""Write the runs of one version that the tests of later versions resume, evaluate and predict with.

``tests/compat/<version>/<task>/<task>.yaml`` is a config with the names of that version. This script writes next to it

* ``run/``: the folder of a run that was interrupted in the middle of an epoch, without its log and report;
* ``expected.json``: the final tensors and all metrics of the same run without an interruption, and the scores of the
  interrupted run's last checkpoint;
* ``predictions.jsonl``: that checkpoint's predictions for the images or videos in ``tests/compat/<version>/inputs``.

``machine.json`` describes the processor and the libraries, because others round differently.

Fixtures are written once, by the version that they are named after::

    python scripts/write_compat_fixtures.py --checkout path/to/checkout/of/v0.1 --out tests/compat/v0.1

For a later version, write its configs into a new folder, extend :data:`RUNS` if necessary and run this script again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "compat" / "v0.1"
RUN_FILES = ("config.yaml", "overrides.json", "origins.json", "metrics.jsonl", "checkpoints")
"""The part of a run folder that is needed to resume."""
DECIMALS = 6
"""Decimals of the recorded predictions."""


class RecordedRun(NamedTuple):
    """Settings of a recorded run.

    Attributes:
        interrupt_at: the step during which it gets the signal.
        signal: SIGTERM saves a checkpoint after that step, SIGKILL does not.
        overrides: changes to the config on the command line.
        inputs: the folder in ``inputs`` with the images or videos to predict for.
    """

    interrupt_at: int
    signal: str
    overrides: tuple[str, ...]
    inputs: str


RUNS = {
    "classification": RecordedRun(6, "SIGTERM", ("train.length=2ep", "seed=5"), "digits"),
    "detection": RecordedRun(7, "SIGTERM", ("train.length=8it",), "scenes"),
    "reid": RecordedRun(8, "SIGKILL", (), "views"),
    "selfsup": RecordedRun(7, "SIGTERM", (), "digits"),
    "video": RecordedRun(6, "SIGTERM", (), "videos"),
}

# A hook of torch counts the updates, so that this works with every version of the package. Before SIGKILL it waits for
# the newest checkpoint, which is written by a thread.
INTERRUPTED = """
import os, runpy, signal, sys, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

name, interrupt_at, folder, *arguments = sys.argv[1:]
step = 0

def interrupt(*_):
    global step
    step += 1
    if step != int(interrupt_at):
        return
    if name == "SIGKILL":
        last = Path(folder) / "checkpoints" / "last"
        while not last.is_file():
            time.sleep(0.01)
        time.sleep(2)
    os.kill(os.getpid(), getattr(signal, name))

register_optimizer_step_post_hook(interrupt)
sys.argv = ["opabinia", *arguments]
runpy.run_module("opabinia", run_name="__main__", alter_sys=True)
"""
EXIT_STATUS = {"SIGTERM": 143, "SIGKILL": -9}


# --- summaries, also used by the tests --------------------------------------------------------------------------------


def machine() -> dict[str, str]:
    """Describe the processor and the libraries that decide about the last bits of a result."""
    libraries = {name: version(name) for name in ("torch", "torchvision", "timm", "numpy", "av")}
    return {"cpu": _processor(), "instructions": torch.backends.cpu.get_cpu_capability(), **libraries}


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    if not file.is_file():
        return f"{platform.machine()}, {platform.processor()}"
    lines = [line.partition(":") for line in file.read_text(encoding="utf-8").split("\n\n")[0].splitlines()]
    values = {name.strip(): value.strip() for name, _, value in lines}
    return ", ".join([platform.machine(), *(values.get(name, "") for name in ("model name", "cpu family", "model"))])


def last_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run folder."""
    checkpoints = run / "checkpoints"
    return checkpoints / (checkpoints / "last").read_text(encoding="utf-8").strip()


def tensor_summaries(checkpoint: Path) -> dict[str, dict[str, str]]:
    """Summarise every tensor of a checkpoint, by file and tensor name: half a SHA-256, the sum, the sum of absolute
    values."""
    return {path.stem: _summaries_of_file(path) for path in sorted(checkpoint.glob("*.safetensors"))}


def _summaries_of_file(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return {name: _summary(file.get_tensor(name)) for name in sorted(file.keys())}


def _summary(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    values = tensor.double()
    return f"{digest.hexdigest()[:32]} {values.sum().item():.9g} {values.abs().sum().item():.9g}"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read the metrics log of a run folder without times, throughput and memory."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if not _depends_on_load(name)} for line in lines]


def _depends_on_load(name: str) -> bool:
    return name == "samples_per_s" or name.startswith(("time/", "memory/"))


def read_results(run: Path) -> dict[str, float]:
    """Read the final scores of a run folder."""
    results: dict[str, float] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


def read_predictions(file: Path) -> list[dict[str, Any]]:
    """Read ``predictions.jsonl`` with rounded numbers, and with file names in place of paths."""
    lines = [_rounded(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    return [{**line, "path": Path(line["path"]).name} for line in lines]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


# --- recording --------------------------------------------------------------------------------------------------------


def record(checkout: Path, out: Path, task: str) -> None:
    """Write the fixture of a task next to its config.

    Args:
        checkout: root of the repository whose package runs.
        out: the folder of the version.
        task: a key of :data:`RUNS`.

    Raises:
        RuntimeError: a command failed, or the run was not interrupted.
    """
    recorded, fixture = RUNS[task], out / task
    with tempfile.TemporaryDirectory() as temporary:
        workdir = Path(temporary)
        # Relative paths only: the run folder keeps some of them.
        shutil.copy(fixture / f"{task}.yaml", workdir)
        shutil.copytree(out / "inputs" / recorded.inputs, workdir / recorded.inputs)
        run, whole = Path("runs", task, "default"), Path("runs", task, "whole")
        train = ["train", f"{task}.yaml", *recorded.overrides, "--quiet"]

        _python(checkout, workdir, "-m", "opabinia", *train, "--name", whole.name)
        interrupt = [recorded.signal, str(recorded.interrupt_at), str(run)]
        _python(checkout, workdir, "-c", INTERRUPTED, *interrupt, *train, status=EXIT_STATUS[recorded.signal])
        shutil.rmtree(fixture / "run", ignore_errors=True)
        for name in RUN_FILES:
            _copy(workdir / run / name, fixture / "run" / name)

        on_last = [str(run), "--checkpoint", "last"]
        scores = json.loads(
            _python(checkout, workdir, "-m", "opabinia", "eval", *on_last, "--weights", "both", "--quiet", "--json")
        )
        files = sorted(str(path.relative_to(workdir)) for path in (workdir / recorded.inputs).iterdir())
        _python(checkout, workdir, "-m", "opabinia", "predict", *on_last, *files, "--out", "predicted")
        expected = {
            "inputs": recorded.inputs,
            "tensors": tensor_summaries(last_checkpoint(workdir / whole)),
            "metrics": read_metrics(workdir / whole),
            "results": read_results(workdir / whole),
            "scores": scores["scores"],
        }
        _write_json(fixture / "expected.json", expected)
        _write_lines(fixture / "predictions.jsonl", read_predictions(workdir / "predicted" / "predictions.jsonl"))


def _python(checkout: Path, workdir: Path, *arguments: str, status: int = 0) -> str:
    """Run Python in ``workdir`` with the package of a checkout and return its output."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(checkout), "NO_COLOR": "1"}
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=workdir, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != status:
        wrong = f"exit status {ended.returncode} instead of {status}"
        raise RuntimeError(f"{' '.join(arguments[2:])}: {wrong}\n{ended.stderr}")
    return ended.stdout


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy(path, target)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _write_lines(path: Path, lines: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


# --- images and videos to predict for ---------------------------------------------------------------------------------


def write_inputs(folder: Path) -> None:
    """Write two images or videos of scikit-learn's digits for each kind of task."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    for name in sorted({recorded.inputs for recorded in RUNS.values()}):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, digit in enumerate(digits[:2]):
        Image.fromarray(digit).save(folder / "digits" / f"{number}.png")
        view = Image.fromarray(digit).resize((32, 32), Image.Resampling.BILINEAR)
        view.save(folder / "views" / f"{number + 1:04d}_c{number + 1}s1_000001_00.png")
        scene = np.full((64, 64), 50, np.uint8)
        scene[4 + 8 * number : 28 + 8 * number, 6:30] = np.maximum(50, np.kron(digit, np.ones((3, 3), np.uint8)))
        scene[30:62, 30:62] = np.maximum(50, np.kron(digits[number + 2], np.ones((4, 4), np.uint8)))
        Image.fromarray(scene).save(folder / "scenes" / f"{number}.png")
        first = np.zeros((32, 32, 3), np.uint8)
        first[8:16, 8:16] = digit[:, :, None]
        frames = [np.roll(first, (time * (1 - number), time * number), (0, 1)) for time in range(16)]
        _write_video(folder / "videos" / f"{number}.mp4", frames)


def _write_video(path: Path, frames: Sequence[Any]) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=8)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def main() -> None:
    """Write the fixtures that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"some of {', '.join(RUNS)}; default: all")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="repository whose package runs; default: this one")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the version, with its configs")
    arguments = parser.parse_args()
    if not (arguments.out / "inputs").is_dir():
        write_inputs(arguments.out / "inputs")
    _write_json(arguments.out / "machine.json", machine())
    for task in arguments.tasks or RUNS:
        record(arguments.checkout.resolve(), arguments.out, task)
        print(arguments.out / task)


if __name__ == "__main__":
    main()
