"""The files of a batch in remote storage are fetched in one call, also for wrapped sources."""

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import GlobalBatch, Source
from opabinia.data import reading
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import Request
from opabinia.data.sources.coco import coco
from opabinia.data.sources.coco_panoptic import coco_panoptic
from opabinia.data.sources.concat import Concat
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.sources.segmentation_folder import segmentation_folder
from opabinia.data.sources.wrapper import ImageLabels, Indexed, StuffMaps, Unlabeled, relabel
from opabinia.runtime import local_copies, storage

IMAGES = 4


def png(pixels: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def write(memory: Any) -> None:
    images = [{"id": number, "file_name": f"{number}.png", "width": 8, "height": 8} for number in range(IMAGES)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16} for n in range(IMAGES)]
    segments = [{"id": 1, "category_id": 1}, {"id": 2, "category_id": 2}]
    maps = [{"image_id": n, "file_name": f"{n}.png", "segments_info": segments} for n in range(IMAGES)]
    categories = [{"id": 1, "name": "box", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    lists = {"images": images, "categories": categories}
    memory.pipe_file("/data/boxes.json", json.dumps(lists | {"annotations": boxes}).encode())
    memory.pipe_file("/data/segments.json", json.dumps(lists | {"annotations": maps}).encode())
    labels = np.repeat([[1, 2]], 8, axis=0).repeat(4, axis=1)
    for number in range(IMAGES):
        memory.pipe_file(f"/data/images/a/{number}.png", png(np.zeros((8, 8, 3))))
        memory.pipe_file(f"/data/labels/a/{number}.png", png(labels - 1))
        memory.pipe_file(f"/data/segments/{number}.png", png(np.stack([labels, 0 * labels, 0 * labels], 2)))


def sources(root: Path) -> dict[str, Source]:
    folder = ImageFolder(root=root / "images")
    maps = segmentation_folder(root=root, classes=["box", "sky"])
    boxes = coco(root=root / "images" / "a", file=root / "boxes.json")
    panoptic = coco_panoptic(root=root / "images" / "a", maps=root / "segments", file=root / "segments.json")
    return {
        "concat": Concat(sources=[Indexed(source=folder), folder]),
        "relabeled": relabel(folder, ("b",), {"a": "b"}),
        "unlabeled": Unlabeled(source=folder),
        "maps": maps,
        "relabeled maps": relabel(maps, ("sky", "box"), {}),
        "image labels": ImageLabels(source=boxes),
        "stuff": StuffMaps(source=panoptic),
    }


def test_files_of_a_batch_are_fetched_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path))
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    memory = fsspec.filesystem("memory")
    write(memory)
    root = Path(local_copies.local_copy("memory://data"))
    calls = list[set[str]]()

    def fetch_all(paths: Iterable[bytes]) -> None:
        files = list(paths)
        calls.append({str(Path(file.decode()).relative_to(root)) for file in files})
        local_copies.fetch_all(files)

    monkeypatch.setattr(reading, "fetch_all", fetch_all)
    indices = np.array([0, 2])
    for name, source in sources(root).items():
        for file in root.rglob("*.png"):
            local_copies._release(file)
        BatchReader(source).read(Request(GlobalBatch(0, 0, 0, 2), indices, indices))
        fetched = {str(file.relative_to(root)) for file in root.rglob("*.png") if not local_copies.is_placeholder(file)}
        assert calls.pop() == fetched and len(fetched) == (2 if "maps" not in name and name != "stuff" else 4), name
    memory.rm("/", recursive=True)
