"""Weights on this machine: installed packages, the caches of the Hugging Face Hub and of torch."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest
import timm
from huggingface_hub import constants

from opabinia.models.weights import packages
from opabinia.models.weights.available import (
    BACKBONES,
    available_backbones,
    available_weights,
    network_allowed,
)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with empty caches; no package is installed."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

    def not_installed(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", not_installed)
    return tmp_path


def cache_repository(folder: Path, file: str = "model.safetensors") -> None:
    """Write a repository of the hub's cache with one revision."""
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / file).write_bytes(b"1234")


def test_cached_weights_are_listed(caches: Path) -> None:
    for name in ("timm--resnet18.a1_in1k", "timm--convnext_tiny.in12k_ft_in1k", "ustc-community--dfine-small-coco"):
        cache_repository(caches / "hub" / f"models--{name}")
    cache_repository(caches / "hub" / "models--timm--config_only", "config.json")
    (caches / "hub" / "models--timm--interrupted" / "blobs").mkdir(parents=True)
    checkpoint = caches / "torch" / "hub" / "checkpoints" / "r3d_18-b3b3357e.pth"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"12345")
    weights = available_weights()
    assert [(known.name, known.place, known.size) for known in weights] == [
        ("convnext_tiny.in12k_ft_in1k", "hub", 4),
        ("resnet18.a1_in1k", "hub", 4),
        ("hf:ustc-community/dfine-small-coco", "hub", 4),
        (str(checkpoint), "torch", 5),
    ]
    assert weights[1].source == "https://huggingface.co/timm/resnet18.a1_in1k"
    assert [known.model for known in available_backbones()] == ["convnext_tiny.in12k_ft_in1k", "resnet18.a1_in1k"]


def test_without_packages_and_caches_there_are_none(caches: Path) -> None:
    assert available_weights() == [] == available_backbones()


def test_installed_packages_come_first(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = caches / packages.PACKAGES[0].file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"123")
    cache_repository(caches / "hub" / "models--timm--resnet18.a1_in1k")
    monkeypatch.setattr(packages.WeightPackage, "path", property(lambda self: file if "lite0" in self.model else None))
    first = available_weights()[0]
    assert (first.place, first.size, first.license) == ("package", 3, "Apache-2.0")
    assert [known.model for known in available_backbones()] == ["tf_efficientnet_lite0.in1k", "resnet18.a1_in1k"]


@pytest.mark.parametrize("offline", [True, False])
def test_the_network_is_not_tried(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection"))
    assert network_allowed() is not offline


def test_known_backbones_are_timm_models_in_the_order_of_their_accuracy() -> None:
    names = [known.model for known in BACKBONES]
    assert names == [known.model for known in sorted(BACKBONES, key=lambda known: (-known.top1, known.gmacs))]
    for known in BACKBONES:
        config = timm.get_pretrained_cfg(known.model.split(".")[0])
        assert config is not None and f"{config.architecture}.{config.tag}" == known.model, "the default weights"


def test_listing_imports_neither_torch_nor_timm() -> None:
    program = (
        "import sys; from opabinia.models.weights.available import available_weights; available_weights()\n"
        "from opabinia.training.available_runs import available_runs; available_runs()\n"
        "print(*{'torch', 'timm', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
