"""Fixtures of the tests of sources."""

import logging

import pytest


@pytest.fixture(autouse=True)
def propagating_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in another test may have disabled propagation of the log."""
    monkeypatch.setattr(logging.getLogger("opabinia"), "propagate", True)
