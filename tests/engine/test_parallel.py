"""Which modules FSDP shards, and what is computed from shards; tests/faults compares training with real processes."""

from pathlib import Path

from tests.faults.programs import Server

BRANCHES = """
# The modules of a ModuleList are sharded, not the list, which is never called: a task (mgn) has its branches in one.
import torch
from torch import nn

from opabinia.contracts import Task
from opabinia.engine.loop.parallel import fsdp


class Branches(Task):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.branches = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, batch, clock):
        stem = self.stem(batch["image"])
        return {"loss": torch.stack([branch(stem).sum() for branch in self.branches]).sum()}


task = Branches()
parallel = fsdp(task, [task], torch.device("cpu"), param_dtype="bf16")
loss = parallel({"image": torch.ones(2, 4)}, None)["loss"]
loss.backward()
assert loss.dtype == torch.bfloat16 and all(param.grad is not None for param in task.parameters())
"""


DETECTORS = """
# Detectors are sharded in half precision, and boxes are not cast: in bfloat16 a box at 1000 pixels would move by up to
# two pixels.
from functools import partial

import torch

from opabinia.contracts import Clock, DatasetInfo, InstanceMasks
from opabinia.engine.loop.parallel import fsdp
from opabinia.models.backbones.timm import timm
from opabinia.models.detectors.boxes import BoxOptions
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.masks import MaskOptions
from opabinia.models.detectors.rcnn import mask_rcnn
from opabinia.models.detectors.regions import PoolingOptions
from opabinia.models.detectors.rpn import ProposalOptions
from opabinia.models.necks import fpn, fpn_p3_p7_from_p5
from opabinia.tasks.detection import Detection

dataset_info = DatasetInfo(2, classes=("a", "b"), boxes=True, masks=True)
detectors = (
    partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1),
    partial(
        mask_rcnn,
        neck=partial(fpn, channels=32),
        proposals=ProposalOptions(),
        pooling=PoolingOptions(),
        box=BoxOptions(fc_dim=32),
        mask=MaskOptions(channels=32),
    ),
)
batch = {
    "image": torch.rand(2, 3, 64, 64),
    "image_sizes": [(64, 64)] * 2,
    "original_size": [(64, 64)] * 2,
    "boxes": [torch.tensor([[1.0, 2.3, 30.0, 40.7]])] * 2,
    "labels": [torch.tensor([1])] * 2,
    "masks": [InstanceMasks.encode(torch.ones(1, 64, 64)).runs] * 2,
}
for detector in detectors:
    task = Detection(dataset_info, backbone=partial(timm, model="test_convnext"), detector=detector)
    compute, inputs = task.detector.losses, []
    task.detector.losses = lambda maps, shape, sizes, targets: inputs.extend([*maps, targets[0].boxes]) or compute(
        maps, shape, sizes, targets
    )
    losses = fsdp(task, [task], torch.device("cpu"), param_dtype="bf16")(batch, Clock())
    *maps, boxes = inputs
    assert {feature_map.dtype for feature_map in maps} == {torch.bfloat16} and torch.equal(boxes, batch["boxes"][0])
    sum(value for name, value in losses.items() if "loss" in name).backward()
    assert all(param.grad is not None for param in task.parameters())
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


def test_sharded_modules(warm_server: Server) -> None:
    """In a separate process, which can have a process group."""
    warm_server.run(code=GROUP.format(BRANCHES + DETECTORS), seconds=200)


SHARDS = """
import os, sys
from datetime import timedelta
from math import inf
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from opabinia.engine.loop.gradient_clipping import clip_each, global_norm
from opabinia.optim.lars import Lars

rank = int(not os.fork())
torch.set_num_threads(1)
limit = timedelta(seconds=60)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2, timeout=limit)
torch.manual_seed(0)
images = torch.randn(6, 3)


def network(is_sharded):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 1))  # rank 1 has no values of the last layer
    if is_sharded:
        fully_shard(net)
    net(images[3 * rank : 3 * rank + 3] if is_sharded else images).square().mean().backward()
    return list(net.parameters())


def update(params, **options):
    optimizer = Lars(params, lr=0.5, weight_decay=0.1, trust_coefficient=1.0, **options)
    for _ in range(2):
        optimizer.step()
    return params


def clipped(clip, params, *arguments):
    gradients = [param.grad for param in params]
    clip(gradients, *arguments)
    return gradients


checks = {
    **{f"norm {p}": lambda params, p=p: [global_norm([param.grad for param in params], p)] for p in (1.0, 2.0, inf)},
    **{f"each {p}": lambda params, p=p: clipped(clip_each, params, 0.1, p) for p in (1.0, 2.0, inf)},
    "gradient": update,
    "direction": lambda params: update(params, adapt="direction", exclude_1d=False),
}
for name, check in checks.items():
    single, sharded = check(network(False)), check(network(True))
    whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in sharded]
    torch.testing.assert_close(whole, single, msg=lambda text: f"{name}: {text}")
dist.destroy_process_group()
if rank:
    os._exit(0)
assert os.wait()[1] == 0
"""


def test_clipping_and_trust_ratios_of_shards(warm_server: Server, tmp_path: Path) -> None:
    warm_server.run(str(tmp_path / "store"), code=SHARDS, seconds=100)
