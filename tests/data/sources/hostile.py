"""Values that no annotation file should hold, and limits for reading them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def deep(width: int = 1) -> list[Any]:
    """Return a list that is nested 50 times."""
    value: list[Any] = []
    for _ in range(50):
        value = [value] * width
    return value


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes 5 s of the processor or allocates 200 MB."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6 and time.process_time() - start < 5
