import random

import numpy as np
import pytest
import torch

from opabinia.runtime.seeds import (
    INIT,
    MIX,
    MODEL,
    ORDER,
    SAMPLE,
    draw_seed,
    hash32,
    preserve_generators,
    random_words,
    seed_model,
    seed_sample,
)

CPU = torch.device("cpu")


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_hash_never_changes() -> None:
    """Another hash would change the order of samples in every run."""
    assert [hash32(), hash32(0), hash32(1, 2, 3), hash32(-1, 2**63 - 1)] == [
        634351890,
        3594686616,
        2534417627,
        3407457615,
    ]


def test_hash_depends_on_values_order_and_length() -> None:
    assert len({ORDER, SAMPLE, MIX, MODEL, INIT}) == 5
    grid = [hash32(purpose, 0, epoch, at) for purpose in (SAMPLE, MIX) for epoch in range(30) for at in range(300)]
    assert len(set(grid)) >= len(grid) - 2  # 18,000 draws of 2**32: 0.04 collisions expected
    assert all(0 <= value < 2**32 for value in grid) and hash32(*np.array([-1, 5])) == hash32(-1, 5)
    assert len({hash32(1, 2), hash32(2, 1), hash32(1, 2, 0), hash32(0, 1, 2)}) == 4
    seeds = {draw_seed() for _ in range(100)}
    assert len(seeds) > 95 and all(0 <= seed < 2**31 for seed in seeds)


def test_a_sample_seed_fixes_all_three_generators() -> None:
    seed_sample(2**32 - 1)
    expected = draws()
    seed_sample(2**32 - 1)
    assert draws() == expected
    seed_sample(2**32 - 2)
    assert all(a != b for a, b in zip(draws(), expected, strict=True))


def test_generators_are_restored_after_an_error() -> None:
    seed_sample(5)
    expected = draws()
    seed_sample(5)
    with pytest.raises(ZeroDivisionError), preserve_generators():
        seed_sample(6)
        draws()
        raise ZeroDivisionError
    assert draws() == expected


@pytest.mark.parametrize("change", [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)])
def test_model_seed_depends_on_every_counter(change: tuple[int, int, int, int]) -> None:
    seed_model(0, 0, 0, 0, CPU)
    expected = torch.rand(8)
    seed_model(*change, CPU)
    assert not torch.equal(torch.rand(8), expected)
    seed_model(0, 0, 0, 0, CPU)
    assert torch.equal(torch.rand(8), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_model_seed_reaches_the_gpu_without_a_wait(name: str) -> None:
    device = torch.device(name)
    torch.cuda.set_sync_debug_mode("error")
    try:
        seed_model(0, 1, 0, 0, device)
        expected = torch.rand(8, device=device)
        seed_model(0, 1, 0, 0, device)
        repeated = torch.rand(8, device=device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(expected, repeated)


def test_random_words_are_a_permutation_that_depends_on_the_seed() -> None:
    words, others = (random_words(5000, seed, CPU) for seed in (1, 2))
    assert len(words.unique()) == 5000 and int(words.min()) >= 0 and int(words.max()) < 2**32
    assert words[:3].tolist() == random_words(3, 1, CPU).tolist()
    for bit in range(32):  # five standard deviations around a half
        assert 0.46 < ((words >> bit) & 1).double().mean() < 0.54
    assert abs(float(torch.corrcoef(torch.stack([words, others]).double())[0, 1])) < 0.07
    shifted = torch.stack([words[1:], others[:-1]]).double()
    assert abs(float(torch.corrcoef(shifted)[0, 1])) < 0.07
