"""Pretrained weights that are at hand without a network, and the order in which a backbone is chosen among them.

Neither torch nor timm is imported, and no server is contacted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from huggingface_hub import constants

from opabinia.models.weights import HUB_FILES
from opabinia.models.weights.packages import weight_packages


@dataclass(frozen=True, kw_only=True)
class AvailableWeights:
    """Pretrained weights on this machine.

    Args:
        name: timm's name of the model and its weights (``resnet18.a1_in1k``); ``hf:OWNER/NAME`` for other repositories
            of the Hugging Face Hub; otherwise the path.
        place: an installed package, the cache of the Hugging Face Hub or that of torch.
        size: bytes of the file.
        license: SPDX identifier; empty if it is not known here.
        source: where they are from.
    """

    name: str
    place: Literal["package", "hub", "torch"]
    size: int
    license: str
    source: str


def available_weights() -> list[AvailableWeights]:
    """Return the pretrained weights on this machine, those of installed packages first, as ``pretrained: true`` looks
    for them."""
    return [*_packaged(), *_in_hub_cache(), *_in_torch_cache()]


def network_allowed() -> bool:
    """Return whether weights may be downloaded: ``HF_HUB_OFFLINE`` is not set. No server is contacted."""
    return not constants.HF_HUB_OFFLINE


def _packaged() -> Iterator[AvailableWeights]:
    for package in weight_packages():
        if package.path is not None:
            yield AvailableWeights(
                name=package.model,
                place="package",
                size=package.path.stat().st_size,
                license=package.license,
                source=f"{package.source}; package {package.distribution}",
            )


def _in_hub_cache() -> Iterator[AvailableWeights]:
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*")):
        owner, name = folder.name.removeprefix("models--").split("--", 1)
        revision = folder / "refs" / "main"
        if not revision.is_file():
            continue
        snapshot = folder / "snapshots" / revision.read_text(encoding="utf-8", errors="replace").strip()
        file = next((snapshot / file for file in HUB_FILES if (snapshot / file).is_file()), None)
        if file is not None:
            is_timm = owner == "timm"
            yield AvailableWeights(
                name=name if is_timm else f"hf:{owner}/{name}",
                place="hub",
                size=file.stat().st_size,
                license="",
                source=f"{constants.ENDPOINT}/{owner}/{name}",
            )


def _in_torch_cache() -> Iterator[AvailableWeights]:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("TORCH_HOME") or f"{cache}/torch").expanduser() / "hub" / "checkpoints"
    for file in sorted(file for suffix in _SUFFIXES for file in folder.glob(f"*{suffix}")):
        yield AvailableWeights(
            name=str(file),
            place="torch",
            size=file.stat().st_size,
            license="",
            source="downloaded by torch",
        )


_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")


class KnownBackbone(NamedTuple):
    """A backbone with ImageNet weights; numbers are timm's own measurements at its evaluation size.

    Attributes:
        model: timm's name of the model and its weights.
        top1: accuracy on ImageNet, in percent.
        gmacs: billions of multiplications for an image of ``size``.
        parameters: in millions, with the classifier.
        size: height and width of the images.
    """

    model: str
    top1: float
    gmacs: float
    parameters: float
    size: int


BACKBONES = (
    KnownBackbone("convnext_base.fb_in22k_ft_in1k", 85.8, 15.4, 88.6, 224),
    KnownBackbone("convnext_small.in12k_ft_in1k", 85.2, 8.7, 50.2, 224),
    KnownBackbone("convnext_tiny.in12k_ft_in1k", 84.2, 4.5, 28.6, 224),
    KnownBackbone("convnextv2_tiny.fcmae_ft_in22k_in1k", 83.9, 4.5, 28.6, 224),
    KnownBackbone("convnext_nano.in12k_ft_in1k", 82.3, 2.5, 15.6, 224),
    KnownBackbone("convnextv2_nano.fcmae_ft_in22k_in1k", 82.0, 2.5, 15.6, 224),
    KnownBackbone("regnety_032.ra_in1k", 81.9, 3.2, 19.4, 224),
    KnownBackbone("tf_efficientnet_lite4.in1k", 81.5, 4.0, 13.0, 380),
    KnownBackbone("regnety_016.tv2_in1k", 80.7, 1.6, 11.2, 224),
    KnownBackbone("resnet50.a1_in1k", 80.4, 4.1, 25.6, 224),
    KnownBackbone("mobilenetv4_conv_medium.e500_r256_in1k", 79.9, 1.1, 9.7, 256),
    KnownBackbone("tf_efficientnet_lite3.in1k", 79.8, 1.7, 8.2, 300),
    KnownBackbone("convnext_pico.d1_in1k", 79.5, 1.4, 9.1, 224),
    KnownBackbone("efficientnet_b0.ra_in1k", 77.7, 0.4, 5.3, 224),
    KnownBackbone("tf_efficientnet_lite2.in1k", 77.5, 0.9, 6.1, 260),
    KnownBackbone("tf_efficientnet_lite1.in1k", 76.7, 0.6, 5.4, 240),
    KnownBackbone("resnet34.a1_in1k", 76.4, 3.7, 21.8, 224),
    KnownBackbone("mobilenetv3_large_100.ra_in1k", 75.8, 0.2, 5.5, 224),
    KnownBackbone("convnext_atto.d2_in1k", 75.7, 0.6, 3.7, 224),
    KnownBackbone("efficientnet_lite0.ra_in1k", 75.5, 0.4, 4.7, 224),
    KnownBackbone("tf_efficientnet_lite0.in1k", 74.8, 0.4, 4.7, 224),
    KnownBackbone("mobilenetv4_conv_small.e2400_r224_in1k", 73.8, 0.2, 3.8, 224),
    KnownBackbone("resnet18.a1_in1k", 71.5, 1.8, 11.7, 224),
)
"""The order of preference for "any good backbone": by accuracy. All are convolutional, take images of any size and give
feature maps of strides 4 to 32, so that one choice serves every task. The numbers are those of timm's repository:
``results/results-imagenet.csv`` and ``results/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv``."""


def available_backbones() -> list[KnownBackbone]:
    """Return the backbones of :data:`BACKBONES` whose weights are at hand, the preferred first."""
    names = {weights.name for weights in available_weights()}
    return [known for known in BACKBONES if known.model in names]
