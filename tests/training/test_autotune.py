"""The search for the largest batch that fits, with simulated memory; tests/faults/test_auto.py has real runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opabinia.config import ConfigError
from opabinia.data import TrainingStream
from opabinia.data.sampling.identity_samplers import identities
from opabinia.data.sources import Digits
from opabinia.training.autotune import RankMeasurement, agree_on_augmentation, suitable_batch_size
from opabinia.training.batch_size_search import Attempt, is_out_of_memory, largest_fitting, repeat_samples
from opabinia.training.run_folder import replace_auto, resolve, with_values

# --- the search -------------------------------------------------------------------------------------------------------


def search(
    memory: Callable[[int], float],
    budget: float,
    max_samples: int = 10**6,
    seconds: Callable[[int], float] = lambda n: 0.0,
) -> tuple[int, str, list[int]]:
    """Return the samples that fit, the reason why no more, and the attempted numbers."""
    attempts: list[int] = []

    def attempt(samples: int) -> Attempt:
        attempts.append(samples)
        return Attempt(samples, memory(samples), seconds(samples))

    largest, reason = largest_fitting(attempt, budget, attempt(1), max_samples)
    return largest.samples, reason, attempts


def test_sizes_are_doubled_and_then_filled_up() -> None:
    assert search(lambda n: 2 + 3 * n, 100) == (32, "the largest that fits", [1, 2, 4, 8, 16, 32])
    assert search(lambda n: 2 + 3 * n, 70) == (22, "the largest that fits", [1, 2, 4, 8, 16, 22])
    assert search(lambda n: n, 10**9, max_samples=50)[:2] == (50, "all samples of the dataset")
    largest, reason, _ = search(lambda n: n, 10**9, seconds=lambda n: n / 10)
    assert largest == 64 and reason == "a step takes 6.4 s, and no longer one is tried"


@settings(max_examples=50)
@given(
    fixed=st.integers(0, 10**6),
    per_sample=st.integers(1, 10**4),
    squared=st.sampled_from([0, 0, 1, 10]),
    capacity=st.integers(5, 10**4),
)
def test_batches_that_do_not_fit_are_not_attempted(fixed: int, per_sample: int, squared: int, capacity: int) -> None:
    """Memory grows with samples, or with pairs of them, as in contrastive losses."""

    def memory(n: int) -> int:
        return fixed + per_sample * n + squared * n * n

    largest, _, attempts = search(memory, memory(capacity))
    assert all(memory(n) <= memory(capacity) for n in attempts if n > 4)
    assert capacity * 63 / 64 - 1 <= largest <= capacity


@given(capacity=st.integers(1, 10**5))
def test_running_out_of_memory_unexpectedly(capacity: int) -> None:
    largest, _, attempts = search(lambda n: 5.0 if n <= capacity else math.inf, 10, max_samples=10**5)
    assert largest <= capacity and largest >= capacity * 31 / 32 - 1
    assert len(attempts) < 40


def test_errors_that_mean_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("x")) and is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


# --- batches ----------------------------------------------------------------------------------------------------------


def test_samples_of_a_batch_are_repeated() -> None:
    batch = {
        "id": ["a", "b"],
        "image": torch.tensor([[1], [2]]),
        "views": (torch.tensor([3, 4]), torch.tensor([5, 6])),
        "boxes": [torch.zeros(1, 4), torch.zeros(2, 4)],
    }
    repeated = repeat_samples(batch, 3)
    assert repeated["id"] == ["a", "b", "a"] and [len(boxes) for boxes in repeated["boxes"]] == [1, 2, 1]
    assert repeated["image"].tolist() == [[1], [2], [1]]
    assert [view.tolist() for view in repeated["views"]] == [[3, 4, 3], [5, 6, 5]]
    assert repeat_samples(batch, 1)["id"] == ["a"]


def data(**keys: object) -> TrainingStream:
    return TrainingStream(source=Digits(split="train"), **keys)  # type: ignore[arg-type]


def test_a_batch_divides_over_processes_and_by_eight() -> None:
    assert suitable_batch_size(data(), 100, 1) == 96
    assert suitable_batch_size(data(), 100, 3) == 96
    assert suitable_batch_size(data(), 13, 1) == 13, "small batches are not rounded"
    assert suitable_batch_size(data(), 14, 4) == 12
    assert suitable_batch_size(data(), 10**6, 2) == 1437, "all samples"
    by_class = data(sampler=partial(identities, instances=6))
    assert suitable_batch_size(by_class, 59, 1) == 48
    with pytest.raises(ConfigError, match=r"data\.batch_size: auto: no batch of up to 5 suits: .*6"):
        suitable_batch_size(by_class, 5, 1)


# --- device of the augmentation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "workers", "device", "choice"),
    [
        pytest.param(2, (8.0, 1.0, 0.0), (2.0, 1.0, 0.5), "device", id="workers are the bottleneck"),
        pytest.param(8, (8.0, 1.0, 0.0), (2.0, 1.0, 0.5), "workers", id="workers keep up"),
        pytest.param(2, (8.0, 1.0, 0.0), (2.0, 1.0, 9.0), "workers", id="the device is slower"),
        pytest.param(0, (2.0, 1.0, 0.0), (1.0, 1.0, 0.5), "device", id="without workers the times add up"),
        pytest.param(2, (2.0, 1.0, 0.0), (1.9, 0.5, 0.45), "workers", id="hardly faster"),
    ],
)
def test_images_are_augmented_where_it_takes_less_time(
    num_workers: int, workers: tuple[float, float, float], device: tuple[float, float, float], choice: str
) -> None:
    fast, (on_workers, on_device) = (
        make_measurement(0.1, 0.1, 0.1),
        (make_measurement(*workers), make_measurement(*device)),
    )
    chosen, measurements = agree_on_augmentation(num_workers, [fast, on_workers], [on_device, fast])
    assert chosen == choice and measurements == ([on_device, fast] if choice == "device" else [fast, on_workers])


def make_measurement(read: float, step: float, finish: float) -> RankMeasurement:
    return RankMeasurement(samples=8, memory=1.0, budget=2.0, read=read, step=step, finish=finish)


def test_auto_is_refused_by_commands_that_do_not_train() -> None:
    config = resolve("classification/digits", ["data.batch_size=auto"]).config
    with pytest.raises(ConfigError, match=r"data\.batch_size: auto is tuned by `opabinia train`"):
        replace_auto(config)
    tuned = with_values(config, batch_size=40, num_workers=7)
    assert (tuned["data"]["batch_size"], tuned["data"]["num_workers"]) == (40, 2)
    assert config["data"]["batch_size"] == "auto", "the original config is unchanged"
    replaced = replace_auto(resolve("classification/digits", ["data.num_workers=auto"]).config)
    assert replaced["data"]["num_workers"] >= 1
