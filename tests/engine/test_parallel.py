"""What FSDP makes units of; that it learns the same is tested with real processes in tests/faults."""

from tests.faults.programs import Server

BRANCHES = """
# A list that nobody calls is sharded by what is in it: the branches of a task (mgn) lie in one, and torch refuses to
# make a unit of that.
import torch
from torch import nn

from opabinia.contracts import Task
from opabinia.engine.parallel import fsdp


class Branches(Task):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, batch, clock):
        stem = self.stem(batch["image"])
        return {"loss": torch.stack([branch(stem).sum() for branch in self.branches]).sum()}


task = Branches()
together = fsdp([task], torch.device("cpu"), param_dtype="bf16")
loss = together({"image": torch.ones(2, 4)}, None)["loss"]
loss.backward()
assert loss.dtype == torch.bfloat16 and all(one.grad is not None for one in task.parameters())
"""


DETECTORS = """
# Detectors are sharded in half precision, and boxes stay as they are: in bfloat16 a box at 1000 pixels would lie up to
# two pixels beside the thing.
from functools import partial

import torch

from opabinia.contracts import Clock, Facts
from opabinia.engine.parallel import fsdp
from opabinia.models.backbones import timm
from opabinia.models.detectors.boxes import Boxes
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.masks import Masks
from opabinia.models.detectors.rcnn import mask_rcnn
from opabinia.models.detectors.regions import Pooling
from opabinia.models.detectors.rpn import Proposals
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5
from opabinia.tasks.detection import Detection

facts = Facts(2, classes=("a", "b"), boxes=True, masks=True)
detectors = (
    partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), convs=1),
    partial(
        mask_rcnn,
        neck=partial(fpn, channels=32),
        proposals=Proposals(),
        pooling=Pooling(),
        box=Boxes(width=32),
        mask=Masks(channels=32),
    ),
)
batch = {
    "image": torch.rand(2, 3, 64, 64),
    "image_sizes": [(64, 64)] * 2,
    "picture_size": [(64, 64)] * 2,
    "boxes": [torch.tensor([[1.0, 2.3, 30.0, 40.7]])] * 2,
    "labels": [torch.tensor([1])] * 2,
    "masks": [torch.ones(1, 64, 64, dtype=torch.uint8)] * 2,
}
for detector in detectors:
    task = Detection(facts, backbone=partial(timm, model="test_convnext"), detector=detector)
    learn, seen = task.detector.losses, []
    task.detector.losses = lambda maps, shape, sizes, targets: seen.extend([*maps, targets[0].boxes]) or learn(
        maps, shape, sizes, targets
    )
    losses = fsdp([task], torch.device("cpu"), param_dtype="bf16")(batch, Clock())
    *maps, boxes = seen
    assert {one.dtype for one in maps} == {torch.bfloat16} and torch.equal(boxes, batch["boxes"][0])
    sum(value for name, value in losses.items() if "loss" in name).backward()
    assert all(one.grad is not None for one in task.parameters())
    with torch.no_grad():
        assert task.eval().predict(batch)["boxes"].dtype == torch.float32
"""

GROUP = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
{}
dist.destroy_process_group()
"""


def test_what_is_sharded(warm_server: Server) -> None:
    """In a process of its own, which may have a group."""
    warm_server.run(code=GROUP.format(BRANCHES + DETECTORS), seconds=200)
