from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo
from opabinia.data.transforms.patch_masks import block_patch_mask
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.clustering import sinkhorn
from opabinia.models.losses.self_distillation import centered_softmax, dino_loss, koleo, masked_patch_loss
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.ibot import IBot
from tests.tasks.selfsup.views import Small, at

FACTS = DatasetInfo(samples=64, channels=3)
OPTIONS = {
    **{"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "dynamic_img_size": True,
}
DINOV2: dict[str, Any] = {"separate_heads": True, "patch_outputs": 14, "koleo_weight": 0.1, "centering": "sinkhorn"}
SHARED: dict[str, Any] = {}


def make(**keys: Any) -> IBot:
    torch.manual_seed(0)
    backbone = partial(timm, model="vit_tiny_patch16_224", options=OPTIONS)
    task = IBot(FACTS, backbone=backbone, **{"hidden": 32, "bottleneck": 8, "outputs": 20, **keys})
    torch.nn.init.normal_(task.hidden_token)
    return task


def batch_of(images: int = 6, small: int = 1, seed: int = 1) -> Batch:
    """Two large views with masks, the first image's hiding nothing, and small ones."""
    torch.manual_seed(seed)
    pixels = torch.nn.functional.interpolate(torch.rand(images, 3, 4, 4), size=(32, 32), mode="bicubic").clamp(0, 1)
    large = [(pixels + 0.05 * torch.randn_like(pixels)).clamp(0, 1) for _ in range(2)]
    views = (*large, *(large[number % 2][:, :, :16, 8:24] for number in range(small)))

    def mask(image: Tensor, none: bool) -> Tensor:
        hidden: Tensor = block_patch_mask({"image": image}, patch_size=8, no_mask_probability=float(none))["patch_mask"]
        return hidden

    masks = [torch.stack([mask(one, number == 0) for number, one in enumerate(view)]) for view in large]
    return {"views": views, "patch_masks": tuple(masks), "id": [str(number) for number in range(images)]}


def by_the_papers(task: IBot, batch: Batch, temperature: float, patch_temperature: float) -> dict[str, Tensor]:
    """The losses, one view after the other."""
    views, masks = [task.normalize(view) for view in batch["views"]], batch["patch_masks"]
    teacher, teaching = (task.teacher.get_submodule(name) for name in ("backbone", "heads"))
    kind = "patches" if "patches" in task.heads else "images"
    seen = [teacher.tokens(view) for view in views[:2]]  # type: ignore[operator]
    said = [teaching.get_submodule("images")(one.first) for one in seen]
    of_patches = [teaching.get_submodule(kind)(one.patches) for one in seen]
    if kind == "images":
        targets = [centered_softmax(one, task.centre.value, temperature) for one in said]
        patch_targets = [centered_softmax(one, task.patch_centre.value, patch_temperature) for one in of_patches]
    else:
        targets = list(sinkhorn(torch.cat(said), temperature).chunk(2))
        even = sinkhorn(torch.cat([one.flatten(0, 1) for one in of_patches]), patch_temperature)
        patch_targets = [one.view_as(of_patches[0]) for one in even.chunk(2)]
    tokens = [
        task.backbone.tokens(view, (masks[number], task.hidden_token) if number < 2 else None)
        for number, view in enumerate(views)
    ]
    patch_losses = [
        masked_patch_loss(task.heads[kind](tokens[number].patches), patch_targets[number], masks[number])
        for number in range(2)
    ]
    losses = {
        "image_loss": dino_loss([task.heads["images"](one.first) for one in tokens], targets),
        "patch_loss": torch.stack(patch_losses).mean(),
    }
    if kind == "patches":
        losses["koleo_loss"] = 0.1 * (koleo(tokens[0].first) + koleo(tokens[1].first))
    return losses


@pytest.mark.parametrize("keys", [SHARED, DINOV2], ids=["ibot", "dinov2"])
@pytest.mark.parametrize("small", [0, 2])
def test_the_losses_are_those_of_the_papers(keys: dict[str, Any], small: int) -> None:
    task, batch = make(**keys, teacher_warmup=Duration(3, "it"), patch_warmup=Duration(0, "it")), batch_of(small=small)
    with torch.no_grad():
        for name, one in task.named_parameters():
            if name.startswith("teacher."):
                one += 0.1 * torch.randn_like(one)
        for name, one in task.named_buffers():
            if name.endswith("centre.value"):
                one += 0.3 * torch.randn_like(one)
    said = task(batch, Clock(step=1))
    expected = by_the_papers(task, batch, 0.055, 0.07)
    assert said.keys() == {*expected, "std", "entropy"}
    for name, loss in expected.items():
        torch.testing.assert_close(said[name], loss)
    parameters = [task.hidden_token, *task.heads.parameters()]
    mine = torch.autograd.grad(sum(said[name] for name in expected), parameters)  # type: ignore[arg-type]
    theirs = torch.autograd.grad(sum(expected.values()), parameters)  # type: ignore[arg-type]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_weights_of_the_losses() -> None:
    plain, weighted = make()(batch_of(), Clock()), make(image_weight=2.0, patch_weight=0.5)(batch_of(), Clock())
    torch.testing.assert_close(weighted["image_loss"], 2 * plain["image_loss"])
    torch.testing.assert_close(weighted["patch_loss"], 0.5 * plain["patch_loss"])


@pytest.mark.parametrize("keys", [SHARED, DINOV2], ids=["ibot", "dinov2"])
def test_gradients_reach_the_whole_student_alone(keys: dict[str, Any]) -> None:
    task = make(**keys)
    said = task(batch_of(), Clock())
    sum(value for name, value in said.items() if "loss" in name).backward()
    without = {name for name, one in task.named_parameters() if one.grad is None}
    assert without == {name for name, one in task.named_parameters() if name.startswith("teacher.")}


def test_nothing_is_hidden_before_its_time() -> None:
    task, batch = make(masking_start=Duration(2, "it")), batch_of()
    seen = {**batch, "patch_masks": tuple(torch.zeros_like(mask) for mask in batch["patch_masks"])}
    for step in range(4):
        said = task(batch, Clock(step=step))
        assert bool(said["patch_loss"] > 0) == (step >= 2)
        same = torch.equal(said["image_loss"], task(seen, Clock(step=step))["image_loss"])
        assert same == (step < 2)
        task.zero_grad()
        (said["image_loss"] + said["patch_loss"]).backward()
        assert task.hidden_token.grad is not None, "every process waits for every parameter"


def test_both_centres_move() -> None:
    task, batch = make(center_momentum=0.9, patch_center_momentum=0.5), batch_of()
    hooks = task.hooks(FACTS)
    for hook in hooks:
        hook.before_step(at(0, 4), batch)
    task(batch, Clock())
    teacher, heads = task.teacher.get_submodule("backbone"), task.teacher.get_submodule("heads")
    seen = teacher.tokens(task.normalize(torch.cat(batch["views"][:2])))  # type: ignore[operator]
    head = heads.get_submodule("images")
    for hook in hooks[-2:]:
        hook.after_step(at(1, 4))
    torch.testing.assert_close(task.centre.value, 0.1 * head(seen.first).mean(0))
    torch.testing.assert_close(task.patch_centre.value, 0.5 * head(seen.patches).mean((0, 1)))


def test_what_compares_images_takes_batches_as_a_whole() -> None:
    assert not make().requires_full_batch
    assert make(koleo_weight=0.1).requires_full_batch and make(centering="sinkhorn").requires_full_batch


def test_sinkhorn_has_no_state() -> None:
    assert not any("centre" in name for name in make(**DINOV2).state_dict())
    assert len(make(**DINOV2).hooks(FACTS)) == 3, "two last layers, and the teacher"


@pytest.mark.parametrize("keys", [SHARED, DINOV2], ids=["ibot", "dinov2"])
def test_it_learns(keys: dict[str, Any]) -> None:
    """The teacher stands still, so that the loss is one function."""
    task = make(**keys, momentum=1.0)
    optimizer = torch.optim.AdamW([one for one in task.parameters() if one.requires_grad], lr=2e-3)
    losses = []
    for step in range(25):
        said = task(batch_of(12, seed=step % 2), Clock(step=step))
        optimizer.zero_grad()
        (said["image_loss"] + said["patch_loss"]).backward()
        optimizer.step()
        losses.append([said["image_loss"].item(), said["patch_loss"].item()])
    first, last = torch.tensor(losses[:4]).mean(0), torch.tensor(losses[-4:]).mean(0)
    assert (last < 0.95 * first).all(), (first, last)


def test_what_has_no_patches_is_refused() -> None:
    with pytest.raises(ValueError, match="backbone: ibot masks patches, and this one has none"):
        IBot(FACTS, backbone=Small)


def test_views_without_masks_are_reported() -> None:
    batch = batch_of()
    for masks in ((), batch["patch_masks"][:1]):
        with pytest.raises(DataMismatch, match=f"2 views with masks, and {len(masks)} have one.*block_patch_mask"):
            make()({**batch, "patch_masks": masks}, Clock())


def test_masks_of_another_grid_are_reported() -> None:
    batch = batch_of()
    masks = tuple(torch.zeros(6, 64, dtype=torch.bool) for _ in range(2))
    with pytest.raises(DataMismatch, match=r"a patch_mask has 64 patches, but views of 32 x 32 have 4 x 4"):
        make()({**batch, "patch_masks": masks}, Clock())


def test_one_view_is_reported() -> None:
    batch = batch_of()
    with pytest.raises(DataMismatch, match="IBot learns from 2 views or more"):
        make()({**batch, "views": batch["views"][:1]}, Clock())
