"""Damaged requests to a server get a result or an error of one line."""

import pytest

from tests.faults.fuzz_requests import run_cases


@pytest.fixture(autouse=True)
def extra() -> None:
    for name in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(name, reason=f"{name} is absent: pip install 'opabinia[serve]'")


def test_damaged_requests() -> None:
    assert run_cases(seed=0, first=0, count=150) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 5_000))
def test_many_damaged_requests(first: int) -> None:
    assert run_cases(seed=1, first=first, count=5_000) == []
