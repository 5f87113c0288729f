import os
from functools import partial
from pathlib import Path

import pytest

from opabinia.runtime.processes import all_gather, from_rank_zero, is_rank_zero, local_rank, rank, world_size
from tests.faults.programs import Server
from tests.runtime.ranks import run_on_ranks


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


class ErrorWithTwoArguments(Exception):
    """Cannot be pickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def refuse(error: Exception) -> None:
    assert rank() == 0
    raise error


def exchange() -> list[list[object]]:
    """Gather values, and let rank 0 decide and fail."""
    os.environ["LOCAL_RANK"] = str(rank())
    values = all_gather([rank(), world_size(), local_rank(), is_rank_zero(), "x" * rank()])
    number = rank()
    assert from_rank_zero(lambda: ("seed", number)) == ("seed", 0)
    for error in (KeyError("lost"), ErrorWithTwoArguments(1, 2)):
        with pytest.raises(Exception, match=str(error)) as caught:
            from_rank_zero(partial(refuse, error))
        assert caught.value.on_all_ranks  # type: ignore[attr-defined]
    return values


def test_two_processes_exchange_values(warm_server: Server, tmp_path: Path) -> None:
    values = [[0, 2, 0, True, ""], [1, 2, 1, False, "x"]]
    assert run_on_ranks(warm_server, tmp_path, f"{__name__}:exchange", 2) == [values, values]
