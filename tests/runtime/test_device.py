import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opabinia
from opabinia.runtime import device as module
from opabinia.runtime.device import choose_device, configure_backends, move_tensor

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def restore_backends() -> Iterator[None]:
    """Restore the settings that tests change."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(threads)


def configure(device: torch.device = CPU, **options: Any) -> int:
    defaults = {"deterministic": False, "cudnn_benchmark": False, "matmul_precision": None, "threads": None}
    return configure_backends(device, **{**defaults, **options})


def pretend(monkeypatch: pytest.MonkeyPatch, *, gpus: int, build: str | None = "13.0", rank: int = 0) -> list[object]:
    """Simulate a machine with ``gpus`` GPUs; return the devices that are set as current."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(module, "local_rank", lambda: rank)
    return chosen


@pytest.mark.parametrize(
    ("name", "gpus", "expected"), [("cpu", 4, "cpu"), ("auto", 0, "cpu"), ("auto", 4, "cuda:2"), ("cuda", 4, "cuda:2")]
)
def test_the_device_is_that_of_the_local_rank(
    monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, expected: str
) -> None:
    chosen = pretend(monkeypatch, gpus=gpus, rank=2)
    assert choose_device(name) == torch.device(expected)
    assert chosen == [torch.device(expected)] * (expected != "cpu")


@pytest.mark.parametrize(
    ("gpus", "build", "rank", "message"),
    [
        (0, "13.0", 0, "'cuda' is not available: no GPU or driver was found; use 'cpu' or 'auto'"),
        (0, None, 0, "'cuda' is not available: this torch build has no CUDA; use 'cpu' or 'auto'"),
        (2, "13.0", 2, "local rank 2 has no GPU of its own: this machine has 2"),
    ],
)
def test_missing_devices_are_reported(
    monkeypatch: pytest.MonkeyPatch, gpus: int, build: str | None, rank: int, message: str
) -> None:
    pretend(monkeypatch, gpus=gpus, build=build, rank=rank)
    with pytest.raises(ValueError, match=f"^{message}$"):
        choose_device("cuda")


@pytest.mark.parametrize(("deterministic", "benchmark"), [(False, False), (False, True), (True, False), (True, True)])
def test_deterministic_and_benchmark_settings(
    deterministic: bool, benchmark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = configure(GPU, deterministic=deterministic, cudnn_benchmark=benchmark)
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.backends.cudnn.deterministic is deterministic
    assert torch.backends.cudnn.benchmark is (benchmark and not deterministic)
    assert threads == torch.get_num_threads()
    assert configure(threads=threads + 1) == torch.get_num_threads() == threads + 1
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    configure(CPU, deterministic=True)
    configure(GPU, deterministic=False)
    with pytest.raises(ValueError, match=r"CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8 .* which has ':0:0'$"):
        configure(GPU, deterministic=True)


def test_importing_the_package_sets_the_workspace_that_deterministic_products_need() -> None:
    program = "import os, sys, opabinia; print(os.environ['CUBLAS_WORKSPACE_CONFIG'], 'torch' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key != "CUBLAS_WORKSPACE_CONFIG"}
    for expected, own in ((":4096:8", {}), (":16:8", {"CUBLAS_WORKSPACE_CONFIG": ":16:8"})):
        output = subprocess.check_output([sys.executable, "-c", program], env={**environment, **own}, text=True)
        assert output == f"{expected} False\n"


def test_the_precision_of_products_is_that_of_the_newest_run() -> None:
    def current() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    defaults = current()
    for precision, tf32 in (("high", True), ("medium", True), ("highest", False)):
        configure(matmul_precision=precision)
        assert current() == (precision, tf32)
    configure()
    assert current() == defaults == ("highest", True)


class RecordingTensor(Tensor):
    """Records the arguments of ``to``."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(("device", "non_blocking"), [("cuda:1", True), ("mps", False), ("cpu", False)])
def test_only_copies_to_cuda_do_not_block(device: str, non_blocking: bool) -> None:
    tensor = torch.ones(2).as_subclass(RecordingTensor)
    assert move_tensor(tensor, torch.device(device)) == ((torch.device(device),), {"non_blocking": non_blocking})


def test_all_copies_to_devices_follow_the_rule() -> None:
    package = Path(opabinia.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"\.to\(.*non_blocking", text)] == ["runtime/device.py"]
