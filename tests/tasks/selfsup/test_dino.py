import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.self_distillation import centered_softmax, dino_loss
from opabinia.models.projectors import DinoHead
from opabinia.optim.groups import parameter_groups
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.dino import DINO
from opabinia.tasks.selfsup.momentum_teacher import MomentumTeacher, UpdateTeacher
from tests.tasks.selfsup.views import FACTS, at, batch_of, make

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "selfsup" / "dino.json").read_text())
OPTIONS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}


def small(**keys: Any) -> DINO:
    return make(DINO, **{"hidden": 32, "bottleneck": 8, "outputs": 20, **keys})


def with_crops(batch: Batch, crops: int = 2) -> Batch:
    views = (*batch["views"], *(batch["views"][number % 2][:, :, :6, :6] for number in range(crops)))
    return {**batch, "views": views}


def answers(network: nn.Module, images: Tensor) -> Tensor:
    logits: Tensor = network.get_submodule("head")(network.get_submodule("backbone")(images))
    return logits


@pytest.mark.parametrize("crops", [0, 3])
def test_the_loss_is_that_of_its_parts(crops: int) -> None:
    task, batch = small(teacher_warmup=Duration(3, "it")), with_crops(batch_of(), crops)
    with torch.no_grad():
        task.centre.value += torch.randn(20)
        for one in task.teacher.parameters():
            one += 0.1 * torch.randn_like(one)
    views = [task.normalize(view) for view in batch["views"]]
    for step, temperature in ((0, 0.04), (1, 0.055), (2, 0.07), (9, 0.07)):
        targets = [centered_softmax(answers(task.teacher, view), task.centre.value, temperature) for view in views[:2]]
        expected = dino_loss([answers(task, view) for view in views], targets, 0.1)
        torch.testing.assert_close(task(batch, Clock(step=step))["loss"], expected)


def test_views_go_through_in_as_few_passes_as_there_are_sizes() -> None:
    task, passed = small(), []
    for name in ("backbone", "teacher.backbone"):
        task.get_submodule(name).register_forward_hook(
            lambda module, given, found, name=name: passed.append((name, tuple(given[0].shape)))
        )
    task(with_crops(batch_of(4), 3), Clock())
    assert passed == [
        ("teacher.backbone", (8, 1, 10, 10)),
        ("backbone", (8, 1, 10, 10)),
        ("backbone", (12, 1, 6, 6)),
    ]


def test_gradients_reach_the_student_alone() -> None:
    task = small()
    task(with_crops(batch_of()), Clock())["loss"].backward()
    assert all(one.grad is None and not one.requires_grad for one in task.teacher.parameters())
    assert all(one.grad is not None for name, one in task.named_parameters() if not name.startswith("teacher."))
    theirs = {id(one) for one in task.teacher.parameters()}
    assert not theirs & {id(one) for group in parameter_groups(task) for one in group["params"]}


def test_the_centre_moves_after_the_step_with_what_was_said_in_it() -> None:
    task = small(center_momentum=0.75)
    hook = task.hooks(FACTS)[-1]
    task(batch_of(seed=7), Clock())  # outside of a step
    hook.before_step(at(0, 4), {})
    said = []
    for seed in (1, 2):  # two pieces of one batch
        batch = with_crops(batch_of(8 * seed, seed=seed))
        task(batch, Clock())
        said += [answers(task.teacher, task.normalize(view)) for view in batch["views"][:2]]
    assert not task.centre.value.any(), "never in forward"
    hook.after_step(at(1, 4))
    torch.testing.assert_close(task.centre.value, 0.25 * torch.cat(said).mean(0))
    assert "centre.value" in task.state_dict()


def test_the_centre_of_no_step_stays() -> None:
    task = small()
    hook = task.hooks(FACTS)[-1]
    hook.before_step(at(0, 4), {})
    hook.after_step(at(1, 4))
    assert not task.centre.value.any()


def moved_by(task: DINO, batch: Batch) -> Tensor:
    """The centre behind a step with this batch."""
    hook = task.hooks(FACTS)[-1]
    hook.before_step(at(0, 4), batch)
    task(batch, Clock())
    hook.after_step(at(1, 4))
    return task.centre.value.clone()


def test_a_step_that_is_passed_over_moves_no_centre() -> None:
    """A rollback leaves batches out: nothing goes forward, and the step counts."""
    task = small()
    centre = moved_by(task, batch_of())
    task.hooks(FACTS)[-1].after_step(at(2, 4))
    assert centre.any() and torch.equal(task.centre.value, centre)


def test_what_is_not_finite_moves_no_centre() -> None:
    task = small()
    centre = moved_by(task, batch_of())
    broken = batch_of(seed=2)
    broken["views"][0][0] = torch.nan
    assert torch.equal(moved_by(task, broken), centre)
    assert not torch.equal(moved_by(task, batch_of(seed=3)), centre)


@pytest.mark.parametrize(
    ("at_step", "momentum"), list(zip(GOLDEN["momentum"]["at"], GOLDEN["momentum"]["expected"], strict=True))
)
def test_the_teacher_follows_as_in_vissl(at_step: int, momentum: float) -> None:
    student, teacher = nn.Linear(1, 1), MomentumTeacher(layer=nn.Linear(1, 1))
    layer = teacher.get_submodule("layer")
    nn.init.ones_(student.weight)
    nn.init.zeros_(layer.get_parameter("weight"))
    UpdateTeacher(teacher, [student], GOLDEN["momentum"]["base"], cosine).after_step(
        at(at_step, GOLDEN["momentum"]["steps"])
    )
    assert 1 - float(layer.get_parameter("weight")) == pytest.approx(momentum, abs=1e-7)


def test_the_teacher_keeps_statistics_of_its_own() -> None:
    dataset_info = DatasetInfo(samples=64, channels=1)
    backbone = partial(timm, model="test_resnet")
    task = DINO(dataset_info, backbone=backbone, hidden=16, bottleneck=8, outputs=6)
    assert isinstance(task.teacher, MomentumTeacher)
    images = torch.rand(4, 1, 32, 32)
    batch = {"views": (images, images.flip(-1), images[:, :, :24, :24]), "id": list("abcd")}
    before = {name: one.clone() for name, one in task.teacher.state_dict().items()}
    task(batch, Clock())["loss"].backward()
    changed = {name for name, one in task.teacher.state_dict().items() if not torch.equal(one, before[name])}
    assert changed and all("running" in name or "num_batches" in name for name in changed)
    own, theirs = task.teacher.state_dict(), task.state_dict()
    assert any(not torch.equal(own[name], theirs[name]) for name in changed), "small crops go through the student only"


@pytest.mark.parametrize(("who", "name"), [("teacher", "teacher.backbone"), ("student", "backbone")])
def test_whose_backbone_is_handed_on(who: str, name: str) -> None:
    task = small(export_backbone=who)
    assert task.trunk is task.get_submodule(name)
    with torch.no_grad():
        for one in task.teacher.parameters():
            one.zero_()
    images = torch.rand(3, 1, 10, 10)
    assert bool(task.predict({"image": images})["embedding"].any()) == (who == "student")


def test_the_last_layer_waits() -> None:
    task = small(freeze_last_layer=Duration(2, "it"), norm_last_layer=False)
    hook = task.hooks(FACTS)[0]
    frozen = []
    for step in range(4):
        task.zero_grad()
        task(batch_of(), Clock(step=step))["loss"].backward()
        hook.after_backward(at(step, 4))
        frozen.append([one.grad is None for one in task.head.last.parameters()])
        assert all(one.grad is not None for one in task.head.mlp.parameters())
    assert frozen == [[True, True]] * 2 + [[False, False]] * 2


def test_the_head_of_the_paper() -> None:
    with torch.device("meta"):
        head = DinoHead(384)
    shapes = {name: tuple(one.shape) for name, one in head.named_parameters() if name.endswith(("weight", "direction"))}
    assert list(shapes.values()) == [(2048, 384), (2048, 2048), (256, 2048), (65536, 256)]
    assert [type(one) for one in head.mlp] == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
    assert not any(name.endswith("length") for name, _ in head.named_parameters())


def test_the_head_gives_cosines() -> None:
    torch.manual_seed(0)
    head = DinoHead(6, 9, hidden=16, bottleneck=4)
    vectors = torch.randn(5, 6)
    logits = head(vectors)
    bottleneck = head.mlp(vectors)
    expected = nn.functional.cosine_similarity(bottleneck[:, None], head.last.direction[None], dim=-1)
    torch.testing.assert_close(logits, expected)
    with torch.no_grad():
        head.last.direction *= 3
    torch.testing.assert_close(head(vectors), logits)


def test_lengths_may_be_learned() -> None:
    torch.manual_seed(0)
    head = DinoHead(6, 9, hidden=16, bottleneck=4, norm_last_layer=False)
    vectors = torch.randn(5, 6)
    before = head(vectors)
    assert head.last.length is not None
    with torch.no_grad():
        head.last.length *= 2
    torch.testing.assert_close(head(vectors), 2 * before)


def test_norms_in_the_head_tell_apart_what_is_nearly_alike() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6) + 0.01 * torch.randn(32, 6)
    alike, apart = (DinoHead(6, 9, hidden=16, bottleneck=4, norm=norm)(vectors).std(0).mean() for norm in (False, True))
    assert apart > 20 * alike
    task = small(head_norm=True)
    assert [type(one) for one in task.head.mlp[:3]] == [nn.Linear, nn.BatchNorm1d, nn.GELU]
    assert not any(one.requires_grad for one in task.teacher.parameters())


def test_it_learns() -> None:
    """The loss rises while the centre takes away what all images share, then falls."""
    task = small(outputs=64, teacher_temperature=0.04, freeze_last_layer=Duration(10, "it"), momentum=0.99)
    hooks, steps, losses = task.hooks(FACTS), 70, []
    optimizer = torch.optim.AdamW([one for one in task.parameters() if one.requires_grad], lr=1e-3)
    for step in range(steps):
        batch = batch_of(32, seed=step)
        for hook in hooks:
            hook.before_step(at(step, steps), batch)
        said = task(batch, Clock(step=step, total_steps=steps))
        optimizer.zero_grad()
        said["loss"].backward()
        for hook in hooks:
            hook.after_backward(at(step, steps))
        optimizer.step()
        for hook in hooks:
            hook.after_step(at(step + 1, steps))
        losses.append(said["loss"].item())
        assert said["std"] > 0.2 and said["entropy"] > 0.3
    assert sum(losses[-5:]) / 5 < max(losses) - 0.5
    assert said["entropy"] > 0.7


def test_too_few_views_or_images_are_reported() -> None:
    batch = batch_of()
    with pytest.raises(
        DataMismatch, match=r"DINO learns from 2 views or more of an image; data.train.transforms gives 1"
    ):
        small()({**batch, "views": batch["views"][:1]}, Clock())
    with pytest.raises(DataMismatch, match="2 images or more per process, not 1"):
        small()(batch_of(1), Clock())


def vit(**options: Any) -> DINO:
    backbone = partial(timm, model="vit_tiny_patch16_224", options={**OPTIONS, **options})
    return DINO(DatasetInfo(samples=64), backbone=backbone, hidden=32, bottleneck=8, outputs=20)


def test_a_transformer_takes_views_of_several_sizes_or_says_how() -> None:
    images = torch.rand(2, 3, 32, 32)
    batch = {"views": (images, images, images[:, :, :16, :16]), "id": ["a", "b"]}
    assert vit(dynamic_img_size=True)(batch, Clock())["loss"].isfinite()
    with pytest.raises(DataMismatch, match=r"views of 32 x 32, 16 x 16: .*dynamic_img_size: true"):
        vit()(batch, Clock())
