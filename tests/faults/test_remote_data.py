"""Training from a bucket on an unreliable server: the weights equal those of training from the local disk."""

import io
import json
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.runtime import local_copies
from tests.faults.programs import Server
from tests.faults.s3 import S3Server

pytestmark = pytest.mark.slow

RECIPE = """
vars: {root: data}
plugins: [tests.faults.parts]
task: {name: classification, backbone: {name: tiny, width: 8}}
data:
  train:
    source: {name: image_folder, root: "${vars.root}/train"}
    transforms: [{name: RandomResizedCrop, size: 8}, {name: RandomHorizontalFlip}]
  val:
    source: {name: image_folder, root: "${vars.root}/val"}
    transforms: [{name: Resize, size: [8, 8]}]
  batch_size: 8
  num_workers: 2
optimizer: {name: sgd, lr: 0.01}
train: {length: 2ep, device: cpu}
evaluate: {every: 1ep}
loggers: []
seed: 0
"""
TARS = ["data.train.source={name: shards, files: '${vars.root}/train-{00..01}.tar', classes: [a, b]}"]
COCO = [
    "task={name: detection, backbone: {name: timm, model: resnet10t, pretrained: false}, detector: {name: fcos}}",
    *(f"data.{split}.source={{name: coco, root: '${{vars.root}}/train', file: '${{vars.root}}/boxes.json'}}"
      for split in ("train", "val")),
    "data.train.transforms=[{name: resize_shortest_edge, short_edge_length: [64], max_size: 64}]",
    "train.length=2it",
    "data.val.transforms=[{name: resize_shortest_edge, short_edge_length: 64, max_size: 64}]",
]  # fmt: skip


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images in class folders, the same images in two tar files, and boxes."""
    root, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, number in (("train", 12), ("val", 4)):
        for name in "ab":
            (root / split / name).mkdir(parents=True)
            for index in range(number):
                pixels = generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{index:02d}.jpg")
    files = sorted((root / "train").rglob("*.jpg"))
    for shard in range(2):
        with tarfile.open(root / f"train-{shard:02d}.tar", "w") as tar:
            for index, file in enumerate(files[shard::2]):
                for suffix, content in (("jpg", file.read_bytes()), ("cls", file.parent.name.encode())):
                    member = tarfile.TarInfo(f"{index:03d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    names = [str(file.relative_to(root / "train")) for file in files]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 20, 20], "area": 400} for i in range(len(names))]
    images = [{"id": index, "file_name": name, "width": 48, "height": 40} for index, name in enumerate(names)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "box"}]}
    (root / "boxes.json").write_text(json.dumps(content))
    return root


@pytest.fixture
def train(server: Server, tmp_path: Path, s3_server: S3Server) -> Callable[..., bytes]:
    """Train with these changes to the recipe; return the weights."""
    recipe = tmp_path / "remote.yaml"
    recipe.write_text(RECIPE)

    def run(name: str, *changes: str, **environment: str) -> bytes:
        variables = {
            **s3_server.environment,
            "OPABINIA_REMOTE_CACHE": os.environ["OPABINIA_REMOTE_CACHE"],
            **environment,
        }
        arguments = ["train", str(recipe), "--out", str(tmp_path), "--name", name, *changes]
        server.run(*arguments, seconds=600, environment=variables)
        checkpoint = max((tmp_path / "remote" / name / "checkpoints").glob("step-*"))
        return b"".join(file.read_bytes() for file in sorted(checkpoint.glob("*.safetensors")))

    return run


@pytest.fixture(scope="module")
def weights(warm_server: Server, local: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of training from the image folder on the local disk."""
    out = tmp_path_factory.mktemp("local")
    (out / "remote.yaml").write_text(RECIPE)
    warm_server.run(
        "train", str(out / "remote.yaml"), "--out", str(out), "--name", "a", f"vars.root={local}", seconds=600
    )
    checkpoint = max((out / "remote" / "a" / "checkpoints").glob("step-*"))
    return b"".join(file.read_bytes() for file in sorted(checkpoint.glob("*.safetensors")))


def test_training_from_a_bucket_equals_training_from_the_disk(
    train: Callable[..., bytes], s3_server: S3Server, local: Path, weights: bytes
) -> None:
    bucket = s3_server.bucket(local)
    root = f"vars.root=s3://{bucket}"
    assert train("folder", root) == weights
    assert len(set(s3_server.reads())) == 32 <= len(s3_server.reads()) < 64  # two workers may fetch one at a time
    s3_server.reset()
    assert train("again", root) == weights
    assert not s3_server.requests
    assert train("tars", root, *TARS) == train("local_tars", f"vars.root={local}", *TARS)
    assert len(s3_server.reads()) == 3  # with boxes.json next to them
    assert train("boxes", root, *COCO) == train("local_boxes", f"vars.root={local}", *COCO)
    assert len(s3_server.reads()) == 3  # the images are cached


def test_faults_of_the_server_do_not_change_the_weights(
    train: Callable[..., bytes], s3_server: S3Server, local: Path, weights: bytes
) -> None:
    bucket = s3_server.bucket(local)
    s3_server.slow_seconds = 0.5
    s3_server.errors = s3_server.slow = s3_server.truncated = s3_server.wrong_etags = 0.1
    assert train("faults", f"vars.root=s3://{bucket}") == weights
    assert train("tars", f"vars.root=s3://{bucket}", *TARS) == train("local", f"vars.root={local}", *TARS)


def test_an_outage_only_delays_training(
    train: Callable[..., bytes], s3_server: S3Server, local: Path, weights: bytes
) -> None:
    bucket, seconds = s3_server.bucket(local), float(os.environ.get("OPABINIA_TEST_OUTAGE", "8"))
    s3_server.latency = 0.2  # so that the outage happens while images are read
    outages = []

    class Watch(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if not outages and len(s3_server.reads()) == 9:
                outages.append(time.monotonic())
                threading.Thread(target=s3_server.outage, args=(seconds,)).start()

    s3_server.requests = Watch()
    assert train("outage", f"vars.root=s3://{bucket}") == weights
    assert time.monotonic() - outages[0] > seconds


def test_killed_processes_leave_no_broken_files(
    server: Server, s3_server: S3Server, local: Path, tmp_path: Path
) -> None:
    bucket = s3_server.bucket(local)
    s3_server.latency = 0.01
    code = f"""
from opabinia.runtime import local_copies
from pathlib import Path
folder = Path(local_copies.local_copy("s3://{bucket}"))
print("listed", flush=True)
for file in sorted(folder.rglob("*.jpg")):
    local_copies.read_file(file)
local_copies.RangeFile(folder / "train-00.tar").pread(10, 0)
"""
    remote = tmp_path / "remote"
    for number in range(6):
        programs = [server.start(code=code, environment=dict(os.environ)) for _ in range(2)]  # two at the same time
        time.sleep(0.4 + 0.2 * number)
        for program in programs:
            program.signal(signal.SIGKILL)
        for path in (remote / "s3").rglob("*.*") if remote.exists() else ():
            name = path.relative_to(remote / "s3" / bucket)
            assert (
                path.is_dir() or local_copies.is_placeholder(path) or path.read_bytes() == (local / name).read_bytes()
            )
    server.start(code=code, environment=dict(os.environ)).expect(0, 120)
    for file in (remote / "s3").rglob("*.jpg"):
        assert file.read_bytes() == (local / file.relative_to(remote / "s3" / bucket)).read_bytes()
