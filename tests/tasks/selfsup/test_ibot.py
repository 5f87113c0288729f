from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo
from opabinia.data.transforms.patch_masks import block_patch_mask
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.self_distillation import centered_softmax, dino_loss, koleo, masked_patch_loss
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.ibot import IBot
from tests.models.losses.test_clustering import sinkhorn
from tests.tasks.selfsup.views import SmallBackbone, run_at_step

DATASET_INFO = DatasetInfo(samples=64, channels=3)
OPTIONS = {
    **{"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "dynamic_img_size": True,
}
DINOV2: dict[str, Any] = {"separate_heads": True, "patch_outputs": 14, "koleo_weight": 0.1, "centering": "sinkhorn"}
SHARED: dict[str, Any] = {}


def make_task(**keys: Any) -> IBot:
    torch.manual_seed(0)
    backbone = partial(timm, model="vit_tiny_patch16_224", options=OPTIONS)
    task = IBot(DATASET_INFO, backbone=backbone, **{"hidden": 32, "bottleneck": 8, "outputs": 20, **keys})
    torch.nn.init.normal_(task.hidden_token)
    return task


def batch_of(images: int = 6, small: int = 1, seed: int = 1) -> Batch:
    """Return two large views with masks, where the first image has no masked patch, and small views."""
    torch.manual_seed(seed)
    patterns = torch.nn.functional.interpolate(torch.rand(images, 3, 4, 4), size=(32, 32), mode="bicubic").clamp(0, 1)
    large = [(patterns + 0.05 * torch.randn_like(patterns)).clamp(0, 1) for _ in range(2)]
    views = (*large, *(large[number % 2][:, :, :16, 8:24] for number in range(small)))

    def mask(image: Tensor, unmasked: bool) -> Tensor:
        patch_mask: Tensor = block_patch_mask({"image": image}, patch_size=8, no_mask_probability=float(unmasked))[
            "patch_mask"
        ]
        return patch_mask

    masks = [torch.stack([mask(image, number == 0) for number, image in enumerate(view)]) for view in large]
    return {"views": views, "patch_masks": tuple(masks), "id": [str(number) for number in range(images)]}


def reference_losses(task: IBot, batch: Batch, temperature: float, patch_temperature: float) -> dict[str, Tensor]:
    """Compute the losses view by view."""
    views, masks = [task.normalize(view) for view in batch["views"]], batch["patch_masks"]
    teacher, teacher_heads = (task.teacher.get_submodule(name) for name in ("backbone", "heads"))
    kind = "patches" if "patches" in task.heads else "images"
    teacher_tokens = [teacher.tokens(view) for view in views[:2]]  # type: ignore[operator]
    image_outputs = [teacher_heads.get_submodule("images")(tokens.first) for tokens in teacher_tokens]
    patch_outputs = [teacher_heads.get_submodule(kind)(tokens.patches) for tokens in teacher_tokens]
    if kind == "images":
        targets = [centered_softmax(output, task.center.value, temperature) for output in image_outputs]
        patch_targets = [
            centered_softmax(output, task.patch_center.value, patch_temperature) for output in patch_outputs
        ]
    else:
        targets = list(sinkhorn(torch.cat(image_outputs), temperature).chunk(2))
        assignments = sinkhorn(torch.cat([output.flatten(0, 1) for output in patch_outputs]), patch_temperature)
        patch_targets = [chunk.view_as(patch_outputs[0]) for chunk in assignments.chunk(2)]
    tokens = [
        task.backbone.tokens(view, (masks[number], task.hidden_token) if number < 2 else None)
        for number, view in enumerate(views)
    ]
    patch_losses = [
        masked_patch_loss(task.heads[kind](tokens[number].patches), patch_targets[number], masks[number])
        for number in range(2)
    ]
    losses = {
        "image_loss": dino_loss([task.heads["images"](view_tokens.first) for view_tokens in tokens], targets),
        "patch_loss": torch.stack(patch_losses).mean(),
    }
    if kind == "patches":
        losses["koleo_loss"] = 0.1 * (koleo(tokens[0].first) + koleo(tokens[1].first))
    return losses


@pytest.mark.parametrize("keys", [SHARED, DINOV2], ids=["ibot", "dinov2"])
@pytest.mark.parametrize("small", [0, 2])
def test_losses_equal_those_of_the_papers(keys: dict[str, Any], small: int) -> None:
    task, batch = (
        make_task(**keys, teacher_warmup=Duration(3, "it"), patch_warmup=Duration(0, "it")),
        batch_of(small=small),
    )
    with torch.no_grad():
        for name, param in task.named_parameters():
            if name.startswith("teacher."):
                param += 0.1 * torch.randn_like(param)
        for name, buffer in task.named_buffers():
            if name.endswith("center.value"):
                buffer += 0.3 * torch.randn_like(buffer)
    losses = task(batch, Clock(step=1))
    expected = reference_losses(task, batch, 0.055, 0.07)
    assert losses.keys() == {*expected, "std", "entropy"}
    for name, loss in expected.items():
        torch.testing.assert_close(losses[name], loss)
    parameters = [task.hidden_token, *task.heads.parameters()]
    grads = torch.autograd.grad(sum(losses[name] for name in expected), parameters)  # type: ignore[arg-type]
    expected_grads = torch.autograd.grad(sum(expected.values()), parameters)  # type: ignore[arg-type]
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_weights_of_the_losses() -> None:
    plain, weighted = (
        make_task()(batch_of(), Clock()),
        make_task(image_weight=2.0, patch_weight=0.5)(batch_of(), Clock()),
    )
    torch.testing.assert_close(weighted["image_loss"], 2 * plain["image_loss"])
    torch.testing.assert_close(weighted["patch_loss"], 0.5 * plain["patch_loss"])


def test_no_patch_is_masked_before_masking_starts() -> None:
    task, batch = make_task(masking_start=Duration(2, "it")), batch_of()
    unmasked_batch = {**batch, "patch_masks": tuple(torch.zeros_like(mask) for mask in batch["patch_masks"])}
    for step in range(4):
        losses = task(batch, Clock(step=step))
        assert bool(losses["patch_loss"] > 0) == (step >= 2)
        same = torch.equal(losses["image_loss"], task(unmasked_batch, Clock(step=step))["image_loss"])
        assert same == (step < 2)
        task.zero_grad()
        (losses["image_loss"] + losses["patch_loss"]).backward()
        assert task.hidden_token.grad is not None, "distributed training needs a gradient of every parameter"


def test_both_centers_are_updated() -> None:
    task, batch = make_task(center_momentum=0.9, patch_center_momentum=0.5), batch_of()
    hooks = task.hooks(DATASET_INFO)
    for hook in hooks:
        hook.before_step(run_at_step(0, 4), batch)
    task(batch, Clock())
    teacher, heads = task.teacher.get_submodule("backbone"), task.teacher.get_submodule("heads")
    tokens = teacher.tokens(task.normalize(torch.cat(batch["views"][:2])))  # type: ignore[operator]
    head = heads.get_submodule("images")
    for hook in hooks[-2:]:
        hook.after_step(run_at_step(1, 4))
    torch.testing.assert_close(task.center.value, 0.1 * head(tokens.first).mean(0))
    torch.testing.assert_close(task.patch_center.value, 0.5 * head(tokens.patches).mean((0, 1)))


def test_losses_that_compare_images_require_the_full_batch() -> None:
    assert not make_task().requires_full_batch
    assert make_task(koleo_weight=0.1).requires_full_batch and make_task(centering="sinkhorn").requires_full_batch


def test_sinkhorn_has_no_state() -> None:
    assert not any("center" in name for name in make_task(**DINOV2).state_dict())
    assert len(make_task(**DINOV2).hooks(DATASET_INFO)) == 3, "two last layers, and the teacher"


def test_backbones_without_patches_are_refused() -> None:
    with pytest.raises(ValueError, match="backbone: ibot masks patches, and this one has none"):
        IBot(DATASET_INFO, backbone=SmallBackbone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_masks": ()}, "2 views with masks, and 0 have one.*block_patch_mask"),
        ({"patch_masks": batch_of()["patch_masks"][:1]}, "2 views with masks, and 1 have one"),
        ({"patch_masks": (torch.zeros(6, 64, dtype=torch.bool),) * 2}, "a patch_mask has 64 patches, .* have 4 x 4"),
        ({"views": batch_of()["views"][:1]}, "IBot learns from 2 views or more"),
    ],
)
def test_batches_that_do_not_fit_are_reported(change: Batch, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        make_task()({**batch_of(), **change}, Clock())
