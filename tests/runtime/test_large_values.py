"""Arrays and tensors in nested values reach rank 0 unchanged."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from opabinia.runtime import large_values
from opabinia.runtime.large_values import gather_to_rank_zero
from opabinia.runtime.processes import rank
from tests.faults.programs import Server
from tests.runtime.ranks import run_on_ranks

WORLD = 3


class Point(NamedTuple):
    values: Any
    name: str


def value_of(number: int) -> dict[str, Any]:
    """Return a value whose arrays differ in size between ranks; rank 1 has none."""
    if number == 1:
        return {"texts": ["a", "b"]}
    generator = torch.Generator().manual_seed(number)
    images = torch.randn(3 + number, 4, 5, generator=generator)
    return {
        "arrays": [images.numpy(), images.numpy()[:, ::2], np.asfortranarray(images[0].numpy()), np.zeros((0, 3))],
        "types": (np.arange(3) > 1, np.array(["x", "yz"]), np.array([None, "x"], object), np.float32(2.5)),
        "point": Point(np.arange(7 * number, dtype=np.int64), f"rank {number}"),
        "tensors": {
            "float": images,
            "view": images[1:, :, 2],
            "half": images.bfloat16(),
            "flags": images > 0,
            "scalar": images.sum(),
            "empty": torch.empty(0, 2),
            "gradient": images[0].clone().requires_grad_(),
        },
    }


def same(value: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return value.dtype == expected.dtype and torch.equal(value, expected)
    if isinstance(expected, np.ndarray):
        return bool(value.dtype == expected.dtype and value.flags.writeable and np.array_equal(value, expected))
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return type(value) is type(expected) and all(map(same, value, expected)) and len(value) == len(expected)
    return bool(value == expected)


def gather_values(message_size: int) -> int | None:
    """Return the number of values that are right; None on other ranks than 0."""
    large_values._MESSAGE_SIZE = message_size
    values = gather_to_rank_zero(lambda: value_of(rank()))
    return values and sum(same(value, value_of(number)) for number, value in enumerate(values))


@pytest.mark.parametrize("message_size", [2**24, 100])
def test_values_reach_rank_zero_unchanged(warm_server: Server, tmp_path: Path, message_size: int) -> None:
    assert run_on_ranks(warm_server, tmp_path, f"{__name__}:gather_values", WORLD, message_size) == [3, None, None]


def fail_on_two_ranks() -> str:
    def fail() -> None:
        if rank():
            raise KeyError(f"rank {rank()}")

    try:
        gather_to_rank_zero(fail)
    except KeyError as error:
        return str(error)
    return "no error"


def test_the_first_error_is_raised_on_all_ranks(warm_server: Server, tmp_path: Path) -> None:
    assert run_on_ranks(warm_server, tmp_path, f"{__name__}:fail_on_two_ranks", WORLD) == ["'rank 1'"] * WORLD


def test_arrays_are_not_pickled() -> None:
    values = {"array": np.zeros(10**6), "tensor": torch.zeros(10**6), "ids": ["a"]}
    head, arrays = large_values._pack(values)
    assert head.size < 1000 and sum(array.size for array in arrays) == 12 * 10**6
    assert all(np.shares_memory(array, values[name]) for array, name in zip(arrays, ("array", "tensor"), strict=True))
    assert gather_to_rank_zero(lambda: values)[0] is values  # type: ignore[index]
