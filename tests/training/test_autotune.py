"""The search for the largest batch that fits, on memories made up; in real runs: tests/faults/test_auto.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opabinia.config import ConfigError
from opabinia.data import Data, Stream
from opabinia.data.sampling.identity_samplers import identities
from opabinia.data.sources import Digits
from opabinia.training.autotune import Trial, agree_on_augmentation, suitable_batch_size
from opabinia.training.batch_size_search import Attempt, is_out_of_memory, largest_fitting, repeat_samples
from opabinia.training.run_folder import replace_auto, resolve, with_values

# --- the search -------------------------------------------------------------------------------------------------------


def search(
    memory: Callable[[int], float], budget: float, most: int = 10**6, seconds: Callable[[int], float] = lambda n: 0.0
) -> tuple[int, str, list[int]]:
    """Samples found, why no more, and what was tried."""
    tried: list[int] = []

    def attempt(samples: int) -> Attempt:
        tried.append(samples)
        return Attempt(samples, memory(samples), seconds(samples))

    found, why = largest_fitting(attempt, budget, attempt(1), most)
    return found.samples, why, tried


def test_sizes_are_doubled_and_then_filled_up() -> None:
    assert search(lambda n: 2 + 3 * n, 100) == (32, "the largest that fits", [1, 2, 4, 8, 16, 32])
    assert search(lambda n: 2 + 3 * n, 70) == (22, "the largest that fits", [1, 2, 4, 8, 16, 22])


@settings(max_examples=50)
@given(
    fixed=st.integers(0, 10**6),
    each=st.integers(1, 10**4),
    squared=st.sampled_from([0, 0, 1, 10]),
    room=st.integers(5, 10**4),
)
def test_nothing_is_tried_that_does_not_fit(fixed: int, each: int, squared: int, room: int) -> None:
    """Where memory grows with the samples, or with their pairs, as in contrastive losses."""

    def memory(n: int) -> int:
        return fixed + each * n + squared * n * n

    found, _, tried = search(memory, memory(room))
    assert all(memory(n) <= memory(room) for n in tried if n > 4)
    assert room * 63 / 64 - 1 <= found <= room


@given(room=st.integers(1, 10**5))
def test_running_out_of_memory_unexpectedly(room: int) -> None:
    found, _, tried = search(lambda n: 5.0 if n <= room else math.inf, 10, most=10**5)
    assert found <= room and found >= room * 31 / 32 - 1
    assert len(tried) < 40


def test_what_else_ends_it() -> None:
    assert search(lambda n: n, 10**9, most=50)[:2] == (50, "all samples of the dataset")
    found, why, _ = search(lambda n: n, 10**9, seconds=lambda n: n / 10)
    assert found == 64 and why == "a step takes 6.4 s, and no longer one is tried"


def test_what_says_that_memory_is_short() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("x")) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


# --- batches ----------------------------------------------------------------------------------------------------------


def test_samples_of_a_batch_in_turn() -> None:
    batch = {
        "id": ["a", "b"],
        "image": torch.tensor([[1], [2]]),
        "views": (torch.tensor([3, 4]), torch.tensor([5, 6])),
        "boxes": [torch.zeros(1, 4), torch.zeros(2, 4)],
    }
    found = repeat_samples(batch, 3)
    assert found["id"] == ["a", "b", "a"] and [len(one) for one in found["boxes"]] == [1, 2, 1]
    assert found["image"].tolist() == [[1], [2], [1]]
    assert [view.tolist() for view in found["views"]] == [[3, 4, 3], [5, 6, 5]]
    assert repeat_samples(batch, 1)["id"] == ["a"]


def data(**keys: object) -> Data:
    return Data(train=Stream(source=Digits(split="train")), batch_size=8, **keys)  # type: ignore[arg-type]


def test_a_batch_divides_over_processes_and_by_eight() -> None:
    assert suitable_batch_size(data(), 100, 1) == 96
    assert suitable_batch_size(data(), 100, 3) == 96
    assert suitable_batch_size(data(), 13, 1) == 13, "too few to care"
    assert suitable_batch_size(data(), 14, 4) == 12
    assert suitable_batch_size(data(), 10**6, 2) == 1437, "all there are"


def test_a_batch_suits_the_sampler() -> None:
    by_class = data(sampler=partial(identities, instances=6))
    assert suitable_batch_size(by_class, 59, 1) == 48
    with pytest.raises(ConfigError, match=r"data\.batch_size: auto: no batch of up to 5 suits: .*6"):
        suitable_batch_size(by_class, 5, 1)


# --- configs ----------------------------------------------------------------------------------------------------------


# --- where images are changed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hands", "workers", "device", "place"),
    [
        pytest.param(2, (8.0, 1.0, 0.0), (2.0, 1.0, 0.5), "device", id="what waits for workers is relieved"),
        pytest.param(8, (8.0, 1.0, 0.0), (2.0, 1.0, 0.5), "workers", id="workers keep up"),
        pytest.param(2, (8.0, 1.0, 0.0), (2.0, 1.0, 9.0), "workers", id="the device is slower"),
        pytest.param(0, (2.0, 1.0, 0.0), (1.0, 1.0, 0.5), "device", id="without workers all of it adds up"),
        pytest.param(2, (2.0, 1.0, 0.0), (1.9, 0.5, 0.45), "workers", id="hardly quicker"),
    ],
)
def test_images_are_changed_where_it_takes_less_time(
    hands: int, workers: tuple[float, float, float], device: tuple[float, float, float], place: str
) -> None:
    quick, (slow, other) = tried(0.1, 0.1, 0.1), (tried(*workers), tried(*device))
    found, everybody = agree_on_augmentation(hands, [quick, slow], [other, quick])
    assert found == place and everybody == ([other, quick] if place == "device" else [quick, slow])


def tried(read: float, step: float, finish: float) -> Trial:
    return Trial(samples=8, memory=1.0, budget=2.0, read=read, step=step, finish=finish)


def test_numbers_stand_in_the_place_of_auto_only() -> None:
    config = resolve("classification/digits", ["data.batch_size=auto"]).config
    found = with_values(config, batch_size=40, num_workers=7)
    assert (found["data"]["batch_size"], found["data"]["num_workers"]) == (40, 2)
    assert config["data"]["batch_size"] == "auto", "the given one stays"


def test_who_does_not_train_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"data\.batch_size: auto is tuned by `opabinia train`"):
        replace_auto(resolve("classification/digits", ["data.batch_size=auto"]).config)
    found = replace_auto(resolve("classification/digits", ["data.num_workers=auto"]).config)
    assert found["data"]["num_workers"] >= 1
