"""What FSDP makes units of; that it learns the same is tested with real processes in tests/faults."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
import torch.distributed as dist
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


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
task = Branches()
together = fsdp([task], torch.device("cpu"), param_dtype="bf16")
loss = together({"image": torch.ones(2, 4)}, None)["loss"]
loss.backward()
assert loss.dtype == torch.bfloat16 and all(one.grad is not None for one in task.parameters())
dist.destroy_process_group()
"""


def test_a_list_that_nobody_calls_is_sharded_by_what_is_in_it() -> None:
    """The branches of a task (mgn) lie in a list; torch refuses to make a unit of that."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
