"""Seeds: every random number of a run is derived from counters, never from the history of a generator.

``hash32(SAMPLE, seed, epoch, position)`` seeds the augmentation of a sample, ``hash32(ORDER, seed, epoch)`` is the key
of an epoch's order, and so on. The first counter is the purpose, so that no two uses share a seed by accident.
"""

from __future__ import annotations

import random
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

ORDER, SAMPLE, MIX, MODEL, INIT, REPLACEMENT, FRESH, DRAW, SUBSET, ANOTHER, DEALT, CLUSTER, STREAM = range(1, 14)


def hash32(*counters: int) -> int:
    """Hash integers (each -2**63 to 2**63 - 1) to 32 bits; their order matters.

    32 bits because torch's CPU generator ignores the upper ones and NumPy's takes no more.
    """
    packed = struct.pack(f"<{len(counters)}q", *counters)
    return int.from_bytes(blake2b(packed, digest_size=4).digest(), "little")


def random_words(count: int, seed: int, device: torch.device) -> Tensor:
    """Return ``count`` different random integers below 2**32 (int64) on ``device``, the same on every device.

    Generators draw other numbers on GPUs than on CPUs, and on GPUs with another number of multiprocessors. This is
    Wellons' hash of 32 bits with two rounds ("hash prospector").
    """
    words = torch.arange(count, device=device)
    for key in (0, hash32(DRAW, seed)):
        words = words ^ key
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            words = (words ^ (words >> shift)) * factor & 0xFFFFFFFF  # below 2**63
        words = words ^ (words >> 15)
    return words


def draw_seed() -> int:
    """Return a seed from the operating system, 0 to 2**31 - 1, for ``seed: null``."""
    return secrets.randbits(31)


def seed_sample(seed: int) -> None:
    """Seed (32 bits) the global CPU generators of torch, Python and NumPy, which data code draws from.

    ``torch.manual_seed`` would also seed every accelerator: 70 us and more, against 10 us for these three.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def seed_model(seed: int, step: int, micro_batch: int, rank: int, device: torch.device) -> None:
    """Seed the random numbers of one forward pass (dropout, stochastic depth) on the CPU and on ``device``.

    The host does not wait for the device.
    """
    value = hash32(MODEL, seed, step, micro_batch, rank)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the global CPU generators of torch, Python and NumPy after the block (0.3 ms)."""
    states = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
