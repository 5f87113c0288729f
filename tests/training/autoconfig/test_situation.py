"""The machine that a recipe is planned for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from opabinia.training.autoconfig.situation import device_of, this_machine


@pytest.mark.parametrize(
    "overrides, device",
    [
        ([], "auto"),
        (["optimizer.lr=1"], "auto"),
        (["train.device=cpu"], "cpu"),
        (["train={device: cuda}"], "cuda"),
        (["train={device: cuda}", "--train.device=cpu"], "cpu"),
        (["train=null"], "auto"),
    ],
)
def test_device_of_overrides(overrides: list[str], device: str) -> None:
    assert device_of(overrides) == device


@pytest.mark.parametrize("given, device, gpus", [("auto", "cuda", 2), ("cuda", "cuda", 2), ("cpu", "cpu", 0)])
def test_the_machine_is_that_of_the_chosen_device(
    given: str, device: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="GPU", total_memory=2**34)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties)
    machine = this_machine(None, given)
    assert (machine.device, machine.gpus) == (device, gpus)
