"""Feature distillation without labels."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from opabinia.contracts import Clock, DataMismatch
from opabinia.models.backbones.timm import timm
from opabinia.models.projectors import without_projectors
from opabinia.tasks.multitask.partial_labels import use_first_view
from opabinia.tasks.selfsup.distillation import Distillation
from opabinia.tasks.selfsup.simclr import SimCLR
from opabinia.tasks.teachers import FrozenTeacher, frozen_features
from opabinia.training.flops import count_forward_flops
from tests.tasks.selfsup.views import DATASET_INFO, SmallBackbone, make_task, run_at_step

RUN = Path("runs/teacher")


def resnet(channels: int) -> Any:
    return timm(channels, model="test_resnet")


def vit(channels: int) -> Any:
    return timm(channels, model="test_vit", options={"img_size": 32, "dynamic_img_size": True})


def teacher_of(backbone: Any, seed: int = 1) -> SimCLR:
    torch.manual_seed(seed)
    return SimCLR(DATASET_INFO, backbone=backbone, mean=[0.4], std=[0.2]).eval()


def with_teacher(backbone: Any, teacher: Any, seed: int = 1, **keys: Any) -> Distillation:
    model = teacher_of(teacher, seed).train()
    torch.manual_seed(0)
    task = Distillation(DATASET_INFO, backbone=backbone, teacher=FrozenTeacher(run=RUN), mean=[0.5], std=[0.25], **keys)
    task.attach_teachers(lambda run: model)
    return task


def images(size: int = 32, count: int = 4) -> torch.Tensor:
    return torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("loss", ["cosine", "mse", "smooth_l1"])
def test_losses_compare_views_of_student_and_teacher(loss: Any) -> None:
    task = with_teacher(resnet, vit, loss=loss, pooled_weight=0.5, dense_weight=2.0).eval()
    views = images(), images().flip(3), images()[..., :16, :16]
    losses = task({"views": views, "id": list("abcd")}, Clock())
    compare: Any = {
        "cosine": lambda student, target, dim: 1 - F.cosine_similarity(student, target, dim=dim).mean(),
        "mse": lambda student, target, dim: (student - target).square().mean(),
        "smooth_l1": lambda student, target, dim: F.smooth_l1_loss(student, target),
    }[loss]
    teacher = teacher_of(vit)
    pooled_layer, dense_layer = (task.get_submodule(f"distill_projector_{kind}") for kind in ("pooled", "dense"))
    targets = [teacher.backbone.vectors_and_maps((view - 0.4) / 0.2) for view in views[:2]]
    students = [task.backbone.vectors_and_maps((view - 0.5) / 0.25) for view in views]
    pooled = [
        compare(pooled_layer(students[number][0]), targets[target][0], 1)
        for number, target in ((0, 0), (1, 1), (2, 0), (2, 1))
    ]
    torch.testing.assert_close(losses["pooled_loss"], 0.5 * torch.stack(pooled).mean())
    dense = []
    for (_, maps), (_, target) in zip(students, targets, strict=False):
        projected = dense_layer(maps.movedim(1, -1)).movedim(-1, 1)
        dense.append(compare(F.interpolate(projected, target.shape[2:], mode="bilinear"), target, 1))
    torch.testing.assert_close(losses["dense_loss"], 2 * torch.stack(dense).mean())
    torch.stack([*losses.values()]).sum().backward()
    assert all(param.grad is not None for param in task.parameters())


def test_plain_images_and_only_pooled_vectors() -> None:
    task = with_teacher(SmallBackbone, vit, pooled_weight=1.0, dense_weight=0.0)
    losses = task({"image": images(), "id": list("abcd")}, Clock())
    assert losses.keys() == {"pooled_loss", "std"}
    losses["pooled_loss"].backward()
    assert all(param.grad is not None for param in task.parameters())


def test_vectors_and_maps_equal_those_of_separate_calls() -> None:
    for backbone in (resnet(1).eval(), vit(1).eval()):
        vectors, maps = backbone.vectors_and_maps(images())
        torch.testing.assert_close(vectors, backbone(images()))
        torch.testing.assert_close(maps, backbone.feature_maps(images()))


def test_the_teacher_is_no_part_of_the_student_and_follows_the_images() -> None:
    model = teacher_of(SmallBackbone).train()
    features = frozen_features(model, maps=False)
    holder = nn.Identity()
    holder.features = features
    copied: Any = copy.deepcopy(holder)
    assert copied.features is features and not [*holder.parameters()]
    assert not any(module.training for module in model.modules())
    vectors, same = features(images())
    assert vectors is same and not vectors.requires_grad
    model.normalize.to("meta")
    with pytest.raises(NotImplementedError, match="out of meta tensor"):  # torch's, when the model moves to the images
        features(images())


def test_counting_flops_leaves_the_teacher_in_place() -> None:
    task = with_teacher(SmallBackbone, vit, pooled_weight=1.0, dense_weight=0.0)
    batch = {"views": (images(count=1), images(count=1)), "id": ["a"]}
    expected = count_forward_flops(task, {"image": images(count=1), "id": ["a"]})
    assert expected is not None and expected.complete
    assert count_forward_flops(task, use_first_view(batch)) == expected  # of a prediction, not of the losses
    assert count_forward_flops(task, {**batch, "image": images(count=1)}) is not None
    assert task(batch, Clock())["pooled_loss"].isfinite()


def test_the_teacher_is_not_saved_but_checked_on_resume() -> None:
    task = with_teacher(SmallBackbone, vit, pooled_weight=1.0, dense_weight=0.0)
    without_teacher = make_task(Distillation, teacher=FrozenTeacher(run=RUN), pooled_weight=1.0, dense_weight=0.0)
    without_teacher.load_state_dict(without_projectors(task.state_dict()))
    assert without_teacher.predict({"image": images(), "id": list("abcd")}).keys() == {"embedding"}
    assert "losses/loss" in task.predict({"image": images(), "views": [images()], "id": list("abcd")})
    [check] = task.hooks(DATASET_INFO)
    check.after_step(run_at_step(1, 2))
    check.load_state_dict(check.state_dict())
    [other_check] = with_teacher(SmallBackbone, vit, seed=5, pooled_weight=1.0, dense_weight=0.0).hooks(DATASET_INFO)
    with pytest.raises(DataMismatch, match="the teacher has other weights than when the checkpoint was saved"):
        other_check.load_state_dict(check.state_dict())


def test_teachers_and_weights_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match="pooled_weight and dense_weight are both 0"):
        make_task(Distillation, teacher=FrozenTeacher(run=RUN), dense_weight=0.0)
    with pytest.raises(ValueError, match="dense_weight: the teacher has no feature maps"):
        with_teacher(resnet, SmallBackbone)
    with pytest.raises(ValueError, match="dense_weight: the backbone has no feature maps"):
        with_teacher(SmallBackbone, resnet)
    task = make_task(Distillation, teacher=FrozenTeacher(backbone=vit))
    with pytest.raises(ValueError, match="this teacher has no trained weights"):
        task.attach_teachers(lambda run: nn.Identity())  # type: ignore[arg-type, return-value]
