"""Compare tiled with downscaled and whole-image detection on scenes of 4,096 x 4,096 pixels with up to 250 handwritten
digits, drawn as those of ``digit_scenes`` from the digits of its validation split.

Run ``python scripts/tiled_detection.py RUN`` with a run of ``detection/digits``. Each row is an evaluation in a process
of its own: AP, AP50, seconds per image and the peak memory. The scenes stay in the folder ``--scenes``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

from opabinia.data.sources import digit_scenes
from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.runtime.seeds import hash32

SIDE, MAX_OBJECTS = 4096, 250
SETTINGS = {
    "downscaled to 1024": "data.val.transforms=[{name: Resize, size: [1024, 1024]}]",
    "downscaled to 2048": "data.val.transforms=[{name: Resize, size: [2048, 2048]}]",
    "whole image": "task.tiles=null",
    "tiles of 512, no overlap": "task.tiles={size: 512, overlap: 0}",
    "tiles of 512, overlap 0.2": "task.tiles={size: 512, overlap: 0.2}",
    "tiles of 128, overlap 0.5": "task.tiles={size: 128, overlap: 0.5, batch_size: 64}",
}
EVALUATE = """
import resource, sys
from pathlib import Path
from typing import Any
from opabinia.training.launch import evaluate
scores = evaluate(Path(sys.argv[1]), sys.argv[2:], name="tiled")
print(scores["tiled/AP"], scores["tiled/AP50"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)
"""


def write_scenes(folder: Path, count: int) -> None:
    """Write seeded scenes as PNG files and their annotations as COCO JSON (``scenes.json``)."""
    folder.mkdir(parents=True, exist_ok=True)
    digit_scenes.SIDE, digit_scenes.MAX_OBJECTS = SIDE, MAX_OBJECTS
    digits, labels = load_digits()
    numbers = split_digits(labels)["val"]
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(count):
        scene = digit_scenes.make_scene(digits[numbers], hash32(4096, index))
        Image.fromarray(scene.image).save(folder / f"{index}.png")
        images.append({"id": index, "file_name": f"{index}.png", "height": SIDE, "width": SIDE})
        for number, instance in enumerate(scene.instances, 1):
            left, top, right, bottom = instance.box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index,
                    "category_id": int(labels[numbers[instance.digit]]) + 1,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": int((scene.owners[top:bottom, left:right] == number).sum()),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for number, name in enumerate("0123456789", 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "scenes.json").write_text(json.dumps(content))


def main() -> None:
    """Print a row of a Markdown table for each setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--scenes", type=Path, default=Path("runs/large_scenes"))
    parser.add_argument("--count", type=int, default=4)
    arguments = parser.parse_args()
    if not (arguments.scenes / "scenes.json").exists():
        write_scenes(arguments.scenes, arguments.count)
    root = arguments.scenes
    common = [
        f"data.val.source={{name: coco, root: {root}, file: {root / 'scenes.json'}, channels: 1}}",
        *("task.validation_loss=false", "task.detector.max_detections=1000"),
        *("evaluate.batch_size=1", "data.num_workers=0"),
    ]
    for name, setting in SETTINGS.items():
        begin = time.perf_counter()
        words = [sys.executable, "-c", EVALUATE, str(arguments.run), *common, setting]
        output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        ap, ap50, memory = map(float, output.splitlines()[-1].split())
        seconds = (time.perf_counter() - begin) / arguments.count
        print(f"| {name} | {ap:.3f} | {ap50:.3f} | {seconds:.1f} s | {memory:.1f} GiB |", flush=True)


if __name__ == "__main__":
    main()
