from pathlib import Path

import pytest

from opabinia.runtime.processes import all_gather, from_rank_zero, is_rank_zero, local_rank, rank, world_size
from tests.faults.programs import Server


def test_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "7")  # from another launcher
    assert (rank(), world_size(), local_rank(), is_rank_zero()) == (0, 1, 0, True)
    value = {"a": object()}
    assert all_gather(value)[0] is value
    assert from_rank_zero(lambda: value) is value
    with pytest.raises(KeyError, match="lost"):
        from_rank_zero(lambda: {}["lost"])


def test_the_local_rank_is_known_before_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (rank(), local_rank()) == (0, 1)


PROGRAM = """
import os, sys
import torch.distributed as dist
from opabinia.runtime.processes import from_rank_zero, all_gather, is_rank_zero, local_rank, rank, world_size
import datetime
number = int(sys.argv[1]) if os.fork() else int(sys.argv[1]) + 1
os.environ["LOCAL_RANK"] = str(number)
limit = datetime.timedelta(seconds=30)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=number, world_size=2, timeout=limit)
values = all_gather((rank(), world_size(), local_rank(), is_rank_zero(), "x" * number))
assert values == [(0, 2, 0, True, ""), (1, 2, 1, False, "x")], values
assert from_rank_zero(lambda: ("seed", number)) == ("seed", 0)

class ErrorWithTwoArguments(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")

def refuse(error):
    assert rank() == 0
    raise error

for error in (KeyError("lost"), ErrorWithTwoArguments(1, 2)):
    try:
        from_rank_zero(lambda: refuse(error))
    except Exception as caught:
        text, marked = str(caught), caught.on_all_ranks
    assert str(error) in text and marked, text
dist.destroy_process_group()
if number:
    os._exit(0)
assert os.wait()[1] == 0
"""


def test_two_processes_exchange_values(warm_server: Server, tmp_path: Path) -> None:
    warm_server.run("0", str(tmp_path / "store"), code=PROGRAM, seconds=100)
