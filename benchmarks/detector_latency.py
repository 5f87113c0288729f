"""A table, and no claim: the latency of exported detectors on this machine's CPU, at 320, 480 and 640 pixels.

Detectors with a ResNet-18, random weights and 80 classes are exported as ONNX with their post-processing, and converted
to OpenVINO where that is installed. One image takes as long as with trained weights, since shapes are static. Measured
as ``opabinia export --evaluate`` does; the machine should be idle.

Run: ``python benchmarks/detector_latency.py``, with names of detectors for some of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from opabinia.contracts import DatasetInfo
from opabinia.inference.export.description import Description
from opabinia.inference.export.exported_task import ExportedTask
from opabinia.inference.export.files import write_file, write_openvino
from opabinia.inference.export.job import ExportJob
from opabinia.inference.export.speed import measure_speed
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.d_fine import DFine
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.rt_detr import RTDetr
from opabinia.runtime.progress import progress_bar
from opabinia.tasks.detection import Detection

SIZES = (320, 480, 640)
CLASSES = tuple(map(str, range(80)))
DETECTORS: Mapping[str, Any] = {"fcos": Fcos, "retinanet": RetinaNet, "rt_detr": RTDetr, "d_fine": DFine}


def job_of(name: str, size: int) -> ExportJob:
    """Return a detector with random weights, and two images of noise."""
    torch.manual_seed(0)
    info = DatasetInfo(samples=2, classes=CLASSES, boxes=True)
    task = Detection(info, backbone=partial(timm, model="resnet18"), detector=DETECTORS[name]).eval()
    image = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    about = Description(
        name, "detection", CLASSES, 3, (size, size), "uint8", "0 to 255", (), (), [], "shrink", 1.0, {}, 0, {}
    )
    return ExportJob(task.export_module(), {"image": image, "image_sizes": torch.full((2, 2), size)}, about)


def print_latencies(name: str, size: int, folder: Path) -> None:
    """Export a detector, and print the milliseconds of one image in each runtime: median and 95th percentile."""
    job, path = job_of(name, size), folder / f"{name}-{size}.onnx"
    with progress_bar(f"export {name} {size}", 2) as bar:
        write_file("onnx", path, job, inf, "noise", bar)
    paths = [path]
    if find_spec("openvino") is not None:
        write_openvino(path, path.with_suffix(""))
        paths.append(path.with_suffix(""))
    for file in paths:
        exported = ExportedTask(file)
        speed = measure_speed(exported.run, job.inputs)
        print(
            f"{name:10} {size:4}  {exported.runtime.version:20} {speed.p50 * 1e3:7.1f} {speed.p95 * 1e3:7.1f}",
            flush=True,
        )


def main() -> None:
    print(f"{torch.get_num_threads()} threads; ms of one image: median, 95th percentile", flush=True)
    with TemporaryDirectory() as folder, torch.no_grad():
        quick = "--quick" in sys.argv
        for name in ["fcos"] if quick else sys.argv[1:] or DETECTORS:
            for size in [64] if quick else SIZES:
                print_latencies(name, size, Path(folder))


if __name__ == "__main__":
    main()
