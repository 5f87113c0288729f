"""timm: its ``train.py`` with its defaults; the word is the path of a checkout of its repository.

Not a default are only the weights, the device, the number of classes and epochs, one validation at the end, and a
warm-up of at most a quarter of the epochs, since that of the defaults would be longer than many of these runs. The
number of epochs is what fits: a run on links to the images of a few batches is made first, in the same time.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
from pathlib import Path

from job import MODEL, Job

job = Job.parse()
BATCH, BATCHES = 128, 4
"""Its default; batches of the first run."""


def train(data: Path, epochs: int, name: str) -> tuple[float, str]:
    """Run the script and return top-1 accuracy in percent and its log."""
    (checkout,) = job.words
    command = [
        *(sys.executable, f"{checkout}/train.py", "--data-dir", str(data)),
        *("--val-split", job.validation.name, "--model", MODEL, "--pretrained", "--pretrained-path", str(job.tensors)),
        *("--num-classes", str(sum(path.is_dir() for path in (job.folder / "train").iterdir())), "--device", "cpu"),
        *("--epochs", str(epochs), "--val-interval", str(epochs), "--warmup-epochs", str(min(5, epochs // 4))),
        *("--seed", str(job.seed), "--output", str(job.out), "--experiment", name),
    ]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        sys.exit(result.stdout[-3000:])
    with (job.out / name / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    return float(rows[-1]["eval_top1"]), result.stdout


def linked(images: list[Path]) -> Path:
    """Return a folder with links to evenly spaced training images and to the validation data."""
    data = job.out / "few"
    for image in images[:: max(1, len(images) // (BATCH * BATCHES))]:
        link = data / image.relative_to(job.folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(image.resolve())
    (data / job.validation.name).symlink_to(job.validation.resolve())
    return data


if __name__ == "__main__":
    images = job.images(job.folder / "train")
    few = linked(images)
    began = time.perf_counter()
    _, log = train(few, 1, "probe")
    whole = time.perf_counter() - began
    # The last line of an epoch has the mean time of its steps and images per second in parentheses.
    lines = re.findall(r"Train: .*Time: [^(]*\((\d+\.\d+)s, *(\d+\.\d+)/s\)", log)
    steps = len(job.images(few / "train")) // BATCH
    step = float(lines[-1][0])
    epochs = job.fitting(step * (len(images) // BATCH), reserve=whole - step * steps)
    top1, _ = train(job.folder, epochs, "run")
    job.finish(f"{epochs} epochs", score=top1 / 100)
