"""Low-rank adapters: trained parameters, names in files, and merging."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import opabinia
from opabinia.config import ConfigError
from opabinia.contracts import DatasetInfo
from opabinia.inference.export import export
from opabinia.models.backbones import timm as backbones
from opabinia.models.backbones.vit import vit
from opabinia.models.lora import Lora, merge_adapters
from opabinia.models.weights.files import read_weights
from opabinia.models.weights.init import load_matching
from opabinia.optim.groups import ParamGroups, parameter_groups
from opabinia.runtime.shards import load_safetensors
from opabinia.tasks.classification import Classification
from opabinia.training import launch
from opabinia.training.model import check_initial_weights

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="the extra lora is not installed")

VIT = "task.backbone={name: timm, model: test_vit, options: {img_size: 32, patch_size: 8}, lora: {rank: 2, alpha: 3}}"
SMALL = [VIT, "data.num_workers=0", "loggers=[]", "data.batch_size=16", "evaluate.every=1000ep", "train.log_every=1"]


def make_backbone(lora: Lora | None = None, model: str = "test_vit", **keys: Any) -> Any:
    torch.manual_seed(0)
    return backbones.timm(3, model=model, options={"img_size": 32, "patch_size": 8, **keys}, lora=lora).eval()


@pytest.fixture(scope="module")
def plain() -> Any:
    return make_backbone()


@pytest.fixture(scope="module")
def adapted() -> Any:
    """A backbone whose adapters change its outputs."""
    net = make_backbone(Lora(rank=2, alpha=3))
    with torch.no_grad():
        for name, param in net.named_parameters():
            if ".lora_B." in name:
                param.normal_(0, 0.1)
    return net


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@needs_peft
def test_only_adapters_are_trained(adapted: Any, plain: Any) -> None:
    """A new adapter changes nothing; depths, gradients and the optimizer's parameters are those of all layers."""
    assert torch.equal(make_backbone(Lora())(IMAGES), plain(IMAGES))
    trained = {name for name, param in adapted.named_parameters() if param.requires_grad}
    assert trained == {name for name, _ in adapted.named_parameters() if ".lora_" in name}
    layers = {name.split(".lora_")[0].rpartition(".attn.")[2] for name in trained}
    assert layers == {"qkv", "proj"}, "not the convolution patch_embed.proj"
    depths, plain_depths = adapted.depths(), plain.depths()
    for name, _ in adapted.named_parameters():
        block = name.split(".attn.")[0]
        assert depths[name] == plain_depths.get(name, plain_depths.get(f"{block}.norm1.weight")), name
    groups = parameter_groups(nn.ModuleDict({"backbone": adapted}), ParamGroups(layer_decay=0.5))
    factors = {id(param): group["lr_factor"] for group in groups for param in group["params"]}
    assert {id(param) for name, param in adapted.named_parameters() if name in trained} == factors.keys()
    assert len(set(factors.values())) == len(adapted.model.blocks)
    adapted.train().checkpoint_activations()
    adapted(IMAGES).sum().backward()
    assert all(bool(param.grad.any()) for param in adapted.parameters() if param.requires_grad)
    adapted.eval().zero_grad()


@needs_peft
@torch.no_grad()
def test_merging_does_not_change_outputs(adapted: Any, plain: Any, tmp_path: Path) -> None:
    merged = copy.deepcopy(adapted)
    merge_adapters(merged)
    assert merged.state_dict().keys() == plain.state_dict().keys()
    assert not torch.allclose(plain(IMAGES), adapted(IMAGES), atol=1e-2)
    torch.testing.assert_close(merged(IMAGES), adapted(IMAGES), atol=1e-5, rtol=0)

    save_file(adapted.state_dict(), tmp_path / "model.safetensors")
    saved = read_weights(tmp_path / "model.safetensors")
    # The file of a run with adapters can be loaded into models with other adapters or none.
    for net in (make_backbone(), make_backbone(Lora(rank=4)), make_backbone(Lora(targets=["fc1"]))):
        report = load_matching(net, saved, required="")
        assert report.complete and set(report.loaded) <= dict(net.named_parameters()).keys()
        torch.testing.assert_close(net(IMAGES), adapted(IMAGES), atol=1e-5, rtol=0)


@needs_peft
@torch.no_grad()
def test_weights_without_adapters_are_loaded_into_the_frozen_layers() -> None:
    """The weights may have another image size and another prefix."""
    torch.manual_seed(1)
    net = vit(3, model="test_vit", image_size=(32, 32), lora=Lora(rank=2)).eval()
    weights = {
        f"encoder.{name}": tensor for name, tensor in make_backbone(img_size=64, patch_size=16).state_dict().items()
    }
    report = load_matching(net, weights, required="")
    assert report.complete and "model.blocks.0.attn.qkv.base_layer.weight" in report.loaded
    layer = "model.blocks.0.attn.qkv"
    assert torch.equal(net.state_dict()[f"{layer}.base_layer.weight"], weights[f"encoder.{layer}.weight"])


def test_invalid_targets_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, options, targets, message in (
        ("test_vit", {}, ["qkv", "query"], "ends with 'query'; there are: fc1, fc2, proj, qkv"),
        ("test_vit", {}, ["kv"], "ends with 'kv'"),
        ("test_vit", {}, [], "at least one, of: fc1"),
        (
            "beit_base_patch16_224",
            {"depth": 1, "embed_dim": 12},
            ["attn.qkv"],
            "this network reads the weights of .*qkv",
        ),
    ):
        with pytest.raises(ValueError, match=f"lora.targets: .*{message}"):
            make_backbone(Lora(targets=targets), model, **options)
    with pytest.raises(ValueError, match="there are: none, since LoRA is for transformers"):
        backbones.timm(3, model="test_resnet", lora=Lora())
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'opabinia\[lora\]'"):
        make_backbone(Lora())


@needs_peft
def test_frozen_random_weights_raise() -> None:
    info = DatasetInfo(samples=1, classes=("a", "b"), channels=3)
    with pytest.raises(ConfigError, match="task: lora would freeze random weights: load"):
        check_initial_weights(Classification(info, backbone=lambda _: make_backbone(Lora())), None)


@needs_peft
@pytest.mark.slow
def test_a_run_is_resumed_and_exported(tmp_path: Path) -> None:
    """The resumed run is bitwise identical, with EMA; the exported file has no adapters."""
    short = [*SMALL, "train.length=4it", "checkpoint.every=2it", "ema.decay=0.5", "task.dropout=0.1"]
    first, _ = launch.train("classification/digits", [*short, "task.backbone.lora=null"], out=tmp_path / "plain")
    options = [*short, "task.backbone.lora.dropout=0.1", f"init.weights={first}", "init.target_prefix=backbone"]
    run, scores = launch.train("classification/digits", options, out=tmp_path)

    def tensors(folder: Path) -> dict[str, Tensor]:
        last = folder / "checkpoints" / "step-00000004"
        files = {file.stem: load_safetensors(file) for file in last.glob("*.safetensors")}
        return {f"{file} {name}": value for file, values in files.items() for name, value in values.items()}

    before = tensors(run)
    state_names = [name for name in before if name.startswith("optimizer") and "exp_avg_sq" in name]
    assert state_names and all(".lora_" in name or "head." in name for name in state_names)
    source = read_weights(first)["backbone.model.blocks.0.attn.qkv.weight"]
    assert torch.equal(before["model backbone.model.blocks.0.attn.qkv.base_layer.weight"], source)
    _, resumed_scores = launch.train(
        "classification/digits", options, out=tmp_path, resume=f"{run}/checkpoints/step-00000002"
    )
    after = tensors(run)
    assert resumed_scores == scores and after.keys() == before.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert "of them trainable" in (run / "train.log").read_text()

    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    task: Any = opabinia.load(run).task
    folder = export(run, form="huggingface")
    assert not any("lora" in name or "base_layer" in name for name in load_safetensors(folder / "model.safetensors"))
    model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    restored = opabinia.load(folder).task
    graph = torch.export.load(export(run, form="torch"))
    assert not any("lora" in name for name in graph.state_dict)
    with torch.no_grad():
        logits = task.predict({"image": images})["logits"]
        torch.testing.assert_close(model(task.normalize(images)), logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(restored.predict({"image": images})["logits"], logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(graph.module()(image=images)["logits"], logits, atol=1e-5, rtol=0)
