"""Functions of tests on several gloo processes."""

import importlib
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.faults.programs import Server


def run_on_ranks(server: Server, folder: Path, function: str, world: int, *arguments: Any) -> list[Any]:
    """Call a function (``module:name``) with JSON arguments on ``world`` ranks and return its results, which are JSON
    values, in the order of ranks."""
    folder.mkdir(exist_ok=True)
    call = f"fork_ranks({str(folder)!r}, {function!r}, {world}, *{arguments!r})"
    server.run(code=f"from tests.runtime.ranks import fork_ranks; {call}", seconds=100)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def fork_ranks(folder: str, function: str, world: int, *arguments: Any) -> None:
    """Become rank 0 and fork the others."""
    children: list[int] = []
    rank = 0
    while rank == 0 and len(children) < world - 1:
        children.append(os.fork())
        rank = 0 if children[-1] else len(children)
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    result = getattr(importlib.import_module(module), name)(*arguments)
    Path(folder, f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
    if rank:
        os._exit(0)
    assert not any(os.waitpid(child, 0)[1] for child in children)
