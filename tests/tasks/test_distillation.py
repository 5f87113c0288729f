import copy
import json
from pathlib import Path
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn
from torch.nn import functional

from opabinia.contracts import Backbone, Batch, Clock, DataMismatch, DatasetInfo, Evaluator, Hook, Predictions, Task
from opabinia.engine.loop.step import total_loss
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.distillation import logits_loss
from opabinia.models.projectors import without_projectors
from opabinia.tasks import distillation
from opabinia.tasks.classification import Classification
from opabinia.tasks.distillation import (
    Distill,
    DistilledTask,
    EmaTeacher,
    Teacher,
    ema_teacher,
)
from opabinia.tasks.teachers import CheckTeachers, build_teacher

CLASSES = ("cat", "dog", "emu", "fox")
FACTS = DatasetInfo(samples=8, channels=3, classes=CLASSES)


class Pool(Backbone):
    """Means of a 2 x 2 grid through one layer of some width, and dropout, which draws numbers in training."""

    def __init__(self, channels: int, width: int = 6) -> None:
        super().__init__()
        self.out_channels = width
        self.calls = 0
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, width), nn.BatchNorm1d(width), nn.Tanh()
        )

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        features: Tensor = self.layers(images)
        return features


def task_of(width: int = 6, seed: int = 0, dataset_info: DatasetInfo = FACTS) -> Classification:
    torch.manual_seed(seed)
    return Classification(dataset_info, backbone=lambda channels: Pool(channels, width))


def batch_of(count: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % len(CLASSES), "id": [str(i) for i in range(count)]}


RUN = Path("runs/teacher")


def distilled(student: Task | None = None, teacher: nn.Module | None = None, **keys: Any) -> DistilledTask:
    return distillation.add_teachers(student or task_of(), [teacher or task_of(9, seed=1)], Distill(run=RUN, **keys))


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_targets_are_those_of_hinton(temperature: float) -> None:
    student, teacher, batch = task_of(), task_of(9, seed=1), batch_of()
    task = distilled(student, teacher, task_weight=0.3, logits_weight=0.7, temperature=temperature)
    losses = task(batch, Clock())
    taught = teacher.predict(batch)["logits"].div(temperature).softmax(1)
    logits = student.predict(batch)["logits"].div(temperature).log_softmax(1)
    expected = (taught * (taught.log() - logits)).sum(1).mean() * temperature**2
    torch.testing.assert_close(losses["distill_logits_loss"], 0.7 * expected)
    torch.testing.assert_close(losses["loss"], 0.3 * Classification.forward(student, batch, Clock())["loss"])
    torch.testing.assert_close(total_loss(losses)[0], losses["loss"] + losses["distill_logits_loss"])


def test_hard_targets_are_the_teachers_best_classes() -> None:
    teacher, batch = task_of(9, seed=1), batch_of()
    task = distilled(teacher=teacher, logits_loss="hard", logits_weight=1.0)
    best = teacher.predict(batch)["logits"].argmax(1)
    expected = functional.cross_entropy(task.predict(batch)["logits"], best)
    torch.testing.assert_close(task(batch, Clock())["distill_logits_loss"], expected)


def test_symmetric_divergence_is_fastreids() -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "fastreid" / "jsdiv.json").read_text())
    student, teacher = (torch.tensor(golden["inputs"][key]) for key in ("student", "teacher"))
    for key, temperature in (("loss", 16.0), ("loss_T1", 1.0)):
        found = logits_loss(student, teacher, "symmetric", temperature).item()
        assert found == pytest.approx(golden["outputs"][key], rel=golden["tolerance"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", lambda s, t: 1 - functional.cosine_similarity(s, t).mean()),
        ("mse", lambda s, t: (s - t).square().mean()),
        ("smooth_l1", lambda s, t: functional.smooth_l1_loss(s, t)),
    ],
)
@pytest.mark.parametrize("width", [6, 9])
def test_features_are_compared_through_a_projector_if_need_be(kind: str, expected: Any, width: int) -> None:
    teacher, batch = task_of(width, seed=1), batch_of()
    task = distilled(teacher=teacher, logits_weight=0.0, features_weight=2.0, features_loss=kind)
    student = task.features(batch)["embedding"]
    projectors = [module for name, module in task.named_children() if name == "distill_projector"]
    assert len(projectors) == (width != 6)
    for projector in projectors:
        student = projector(student)
    losses = task(batch, Clock())
    assert {name for name in losses if "loss" in name} == {"loss", "distill_features_loss"}
    torch.testing.assert_close(
        losses["distill_features_loss"], 2 * expected(student, teacher.features(batch)["embedding"])
    )
    losses["distill_features_loss"].backward()
    assert all(parameter.grad is not None for module in projectors for parameter in module.parameters())


def test_the_temperature_follows_its_schedule() -> None:
    task = distilled(temperature=2.0, temperature_schedule=lambda clock: 1 + clock.progress)
    batch = batch_of()
    late = task(batch, Clock(step=10, total_steps=10))["distill_logits_loss"]
    task = distilled(temperature=4.0)
    torch.testing.assert_close(task(batch, Clock())["distill_logits_loss"], late)


class Odd(Classification):
    """Gives its losses in a given form."""

    form: Any = staticmethod(lambda loss: loss)

    def forward(self, batch: Batch, clock: Clock) -> Any:
        return self.form(super().forward(batch, clock)["loss"])


@pytest.mark.parametrize(
    ("form", "trained"),
    [
        (lambda loss: loss, lambda loss: loss),
        (lambda loss: [loss, 2 * loss], lambda loss: 3 * loss),
        (lambda loss: {"a_loss": loss, "b_loss": loss, "accuracy": 7 * loss}, lambda loss: 2 * loss),
        (lambda loss: {"total_loss": loss, "a_loss": 5 * loss}, lambda loss: loss),
    ],
)
def test_losses_of_any_form_are_weighted(form: Any, trained: Any) -> None:
    torch.manual_seed(0)
    student = Odd(FACTS, backbone=Pool)
    student.form = form
    batch = batch_of()
    own = Classification.forward(student, batch, Clock())["loss"]
    task = distilled(student, task_weight=0.25, logits_weight=2.0, features_weight=0.5)
    losses = task(batch, Clock())
    teaching = losses["distill_logits_loss"] + losses["distill_features_loss"]
    torch.testing.assert_close(total_loss(losses)[0], 0.25 * trained(own) + teaching)
    if "accuracy" in losses:
        torch.testing.assert_close(losses["accuracy"], 7 * own)


def test_shapes_that_differ_are_reported() -> None:
    other = task_of(seed=1, dataset_info=DatasetInfo(8, 3, (*CLASSES, "gnu")))
    with pytest.raises(
        DataMismatch, match=r"the student's logits are of shape \(8, 4\), the teacher's of shape \(8, 5\)"
    ):
        distilled(teacher=other)(batch_of(), Clock())


# --- the student stays what it is -------------------------------------------------------------------------------------


def test_names_are_those_of_the_student() -> None:
    alone = task_of()
    task = distilled(features_weight=1.0)
    extra = {"distill_projector.weight", "distill_projector.bias"}
    assert set(task.state_dict()) == set(alone.state_dict()) | extra
    assert {name for name, _ in task.named_parameters()} == {name for name, _ in alone.named_parameters()} | extra
    assert set(without_projectors(task.state_dict())) == set(alone.state_dict())
    assert set(distilled().state_dict()) == set(alone.state_dict()), "widths do not matter to logits"
    alone.load_state_dict(without_projectors(task.state_dict()))
    batch = batch_of()
    torch.testing.assert_close(alone.eval().predict(batch), task.eval().predict(batch))


class Clocked(Classification):
    """A task with a method, an attribute, a buffer and a parameter of its own, and hooks that change them."""

    def __init__(self, dataset_info: DatasetInfo) -> None:
        super().__init__(dataset_info, backbone=Pool)
        self.ticks = 0
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def tick(self) -> int:
        self.ticks += 1
        return self.ticks

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        self.seen = self.seen + len(batch["id"])
        return {"loss": self.scale * (1 + self.ticks) * super().forward(batch, clock)["loss"]}

    def predict(self, batch: Batch) -> Predictions:
        return {**super().predict(batch), "seen": self.seen.expand(len(batch["id"]))}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"own": torch.ones(len(batch["id"]), 1)}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        return []

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        return [Hook(), Hook()]


def test_whatever_the_student_has_is_there() -> None:
    student = Clocked(FACTS)
    task, batch = distilled(student), batch_of()
    assert task.tick() == 1
    task.ticks = 3  # as a hook does
    losses = task(batch, Clock())
    torch.testing.assert_close(losses["loss"], 0.5 * 4 * Classification.forward(student, batch, Clock())["loss"])
    assert task.predict(batch)["seen"].tolist() == [8.0] * 8
    assert task.features(batch).keys() == {"own"}
    assert task.evaluators(FACTS) == []
    assert [type(hook) for hook in task.hooks(FACTS)] == [Hook, Hook, CheckTeachers]
    assert {"scale", "seen"} <= task.state_dict().keys()
    assert dict(task.named_parameters())["scale"] is student.scale
    task.double()
    assert student.scale.dtype == student.seen.dtype == task.seen.dtype == torch.float64
    with pytest.raises(AttributeError, match="tock"):
        task.tock()


def test_the_student_works_once_and_hooks_on_the_task_are_called_once() -> None:
    student = task_of()
    task, calls = distilled(student, features_weight=1.0), []
    task.register_forward_hook(lambda *_: calls.append(1))
    task(batch_of(), Clock())
    assert isinstance(student.backbone, Pool)
    assert student.backbone.calls == 1
    assert calls == [1]


def test_training_mode_is_the_students() -> None:
    student = task_of()
    task = distilled(student)
    assert not task.eval().training
    assert not student.backbone.training
    assert task.train().training
    assert student.training
    assert student.backbone.training


def test_a_step_learns_what_it_would_by_hand() -> None:
    """Gradients, and the running statistics of both: the teacher's stay."""
    student, teacher, batch = task_of(), task_of(9, seed=1), batch_of()
    twin, still = copy.deepcopy(student), copy.deepcopy(teacher.state_dict())
    task = distilled(student, teacher).train()
    total_loss(task(batch, Clock()))[0].backward()
    with torch.no_grad():
        taught = teacher.predict(batch)["logits"].log_softmax(1)
    logits = twin.train().head(twin.backbone(twin.normalize(batch["image"])))
    by_hand = 0.5 * functional.cross_entropy(logits, batch["label"]) + 0.5 * functional.kl_div(
        logits.log_softmax(1), taught, reduction="batchmean", log_target=True
    )
    by_hand.backward()
    for (name, parameter), other in zip(student.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, msg=name)
    torch.testing.assert_close(task.state_dict(), twin.state_dict())
    torch.testing.assert_close(teacher.state_dict(), still)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


# --- the teacher ------------------------------------------------------------------------------------------------------


def test_the_teacher_follows_but_is_no_part() -> None:
    teacher = task_of(9, seed=1)
    task = distilled(teacher=teacher)
    task.train()
    assert not any(module.training for module in teacher.modules())
    mine = {id(tensor) for tensor in (*task.parameters(), *task.buffers())}
    assert not mine & {id(tensor) for tensor in (*teacher.parameters(), *teacher.buffers())}
    assert all(module is not teacher for module in task.modules())
    task.to("meta")
    assert {tensor.device.type for tensor in (*teacher.parameters(), *teacher.buffers())} == {"meta"}
    assert {tensor.device.type for tensor in task.parameters()} == {"meta"}


def test_a_copy_is_whole_and_its_own_but_for_the_teachers() -> None:
    task = distilled(features_weight=1.0, ema_teacher=EmaTeacher())
    other = copy.deepcopy(task)
    batch = batch_of()
    torch.testing.assert_close(other.eval()(batch, Clock()), task.eval()(batch, Clock()))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert any(parameter.any() for parameter in task.parameters())
    assert other(batch, Clock())["distill_logits_loss"] != task(batch, Clock())["distill_logits_loss"]
    assert [one.model for one in other._distillation.teachers] == [one.model for one in task._distillation.teachers]
    other.note = 1
    assert not hasattr(task, "note")


def test_graphs_and_activations_are_not_kept() -> None:
    task = distilled(features_weight=1.0, ema_teacher=EmaTeacher())
    task(batch_of(), Clock())
    task.predict(batch_of())
    taps = [
        *task._distillation.recorders.values(),
        *(tap for one in task._distillation.teachers for tap in one.recorders.values()),
    ]
    assert len(taps) == 6
    assert not [tap.outputs for tap in taps if tap.outputs]


def test_the_log_shows_the_teacher() -> None:
    text = str(distilled(ema_teacher=EmaTeacher()))
    assert "(teacher): Classification" in text
    assert "(average): Classification" in text
    assert "(loss): <function cross_entropy" in text


# --- several teachers -------------------------------------------------------------------------------------------------


def of_several(**keys: Any) -> Distill:
    return Distill(teachers=[Teacher(run=RUN), Teacher(run=RUN)], **keys)


@pytest.mark.parametrize("kind", ["soft", "symmetric", "hard", "mse"])
def test_of_several_teachers_the_mean_is_learned(kind: Any) -> None:
    keys: dict[str, Any] = {"logits_loss": kind, "features_weight": 1.0, "temperature": 16.0}
    teachers, batch = [task_of(seed=1), task_of(seed=2)], batch_of()
    alone = [distilled(teacher=copy.deepcopy(one), **keys)(batch, Clock()) for one in teachers]
    losses = distillation.add_teachers(task_of(), teachers, of_several(**keys))(batch, Clock())
    for name in ("distill_logits_loss", "distill_features_loss"):
        torch.testing.assert_close(losses[name], (alone[0][name] + alone[1][name]) / 2)
    assert losses["loss"] == alone[0]["loss"]


def test_each_teacher_has_a_projector_if_it_needs_one() -> None:
    keys: dict[str, Any] = {"features_weight": 1.0, "ema_teacher": EmaTeacher()}
    task = distillation.add_teachers(task_of(), [task_of(seed=1), task_of(9, seed=2)], of_several(**keys))
    extra = {"distill_projector_2.weight", "distill_projector_2.bias"}
    assert set(task.state_dict()) == set(task_of().state_dict()) | extra
    assert set(without_projectors(task.state_dict())) == set(task_of().state_dict())
    assert task(batch_of(), Clock())["distill_features_loss"].isfinite()


class Mirrored(Classification):
    """Predicts the mean of what it says of an image and of its mirror image, as re-identification does."""

    def predict(self, batch: Batch) -> Predictions:
        logits = super().predict(batch)["logits"]
        return {"logits": (logits + super().predict({**batch, "image": batch["image"].flip(-1)})["logits"]) / 2}


def test_what_a_teacher_says_of_mirror_images_is_left_out() -> None:
    torch.manual_seed(1)
    teacher, batch = Mirrored(FACTS, backbone=Pool), batch_of()
    keys: dict[str, Any] = {"features_weight": 1.0}
    expected = distilled(teacher=task_of(seed=1), **keys)(batch, Clock())
    torch.testing.assert_close(distilled(teacher=teacher, **keys)(batch, Clock()), expected)


# --- its own average --------------------------------------------------------------------------------------------------


def following(momentum: float, **keys: Any) -> tuple[DistilledTask, Task, Hook]:
    """A task that its own average teaches, the average, and the hook that updates it."""
    task = distillation.add_teachers(task_of(), [], Distill(ema_teacher=EmaTeacher(decay=momentum), **keys))
    average = ema_teacher(task)
    assert average is not None
    (hook,) = task.hooks(FACTS)
    hook.start(NO_RUN)
    return task, average, hook


NO_RUN: Any = None


def step(task: Task) -> None:
    """A step down the gradient, which changes running statistics, too."""
    total_loss(task.train()(batch_of(), Clock()))[0].backward()
    with torch.no_grad():
        for parameter in task.parameters():
            if parameter.grad is not None:
                parameter -= 0.5 * parameter.grad
                parameter.grad = None


def test_the_average_is_one_of_weights_and_running_statistics() -> None:
    task, average, hook = following(0.9)
    expected = {name: value.clone() for name, value in task.state_dict().items()}
    for _ in range(3):
        step(task)
        hook.after_step(NO_RUN)
        for name, value in task.state_dict().items():
            kept = 0.9 * expected[name] + 0.1 * value
            expected[name] = kept if value.is_floating_point() else value.clone()
    torch.testing.assert_close(dict(average.state_dict()), expected)
    mean = "backbone.layers.3.running_mean"
    assert not torch.equal(average.state_dict()[mean], task.state_dict()[mean])
    assert not any(module.training for module in average.modules())
    assert not any(parameter.requires_grad for parameter in average.parameters())


def test_the_average_teaches_what_it_says_itself() -> None:
    task, average, hook = following(0.5, logits_loss="symmetric", temperature=16.0, logits_weight=1.0)
    step(task)
    hook.after_step(NO_RUN)
    batch = batch_of()
    logits, own = average.predict(batch)["logits"], task.eval().predict(batch)["logits"]
    expected = logits_loss(own, logits, "symmetric", 16.0)
    assert expected > 0
    torch.testing.assert_close(task(batch, Clock())["distill_logits_loss"], expected)


def test_the_average_is_no_part_of_the_student_but_saved() -> None:
    task, average, hook = following(0.9)
    assert set(task.state_dict()) == set(task_of().state_dict())
    step(task)
    hook.after_step(NO_RUN)
    saved = {name: value.clone() for name, value in hook.tensors().items()}
    other, restored, again = following(0.9)
    again.load_tensors(saved)
    again.start(NO_RUN)
    torch.testing.assert_close(dict(restored.state_dict()), dict(average.state_dict()), rtol=0, atol=0)
    assert not torch.equal(next(other.parameters()), next(restored.parameters()))


def test_the_mean_is_taken_over_the_average_too() -> None:
    teacher, batch = task_of(seed=1), batch_of()
    both = distilled(task_of().eval(), teacher, ema_teacher=EmaTeacher())(batch, Clock())["distill_logits_loss"]
    alone = distilled(task_of().eval(), teacher)(batch, Clock())["distill_logits_loss"]
    torch.testing.assert_close(both, alone / 2)  # which says nothing else than the student so far


# --- modules by name --------------------------------------------------------------------------------------------------


def test_inner_layers_can_be_compared() -> None:
    """Maps of a ResNet with tokens of another; the widths are those of their last layers."""

    def resnet(model: str) -> Classification:
        return Classification(FACTS, backbone=lambda channels: timm(channels, model=model))

    student, teacher = resnet("test_resnet"), resnet("test_byobnet")
    keys = {"student_features": "backbone.model.layer3", "teacher_features": "backbone.model.stages.2"}
    task = distilled(student, teacher, logits_weight=0.0, features_weight=1.0, features_loss="mse", **keys)
    batch = {**batch_of(2), "image": torch.rand(2, 3, 64, 64)}
    losses = task(batch, Clock())
    losses["distill_features_loss"].backward()
    assert student.backbone.get_parameter("model.layer3.0.conv1.weight").grad is not None


class Crops(Classification):
    """Looks at two halves of a batch in turn."""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        halves = [self.head(self.embed({"image": half})) for half in batch["image"].chunk(2)]
        return {"loss": self.loss(torch.cat(halves), batch["label"])}


def test_outputs_of_several_calls_are_put_together() -> None:
    torch.manual_seed(0)
    student, batch = Crops(FACTS, backbone=Pool).eval(), batch_of()
    teacher = task_of(9, seed=1)
    both = distilled(student, teacher)(batch, Clock())
    whole = distilled(task_of().eval(), teacher)(batch, Clock())
    for name in ("loss", "distill_logits_loss"):
        torch.testing.assert_close(both[name], whole[name])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"logits_weight": 0.0}, "logits_weight and features_weight are both 0"),
        ({"student_logits": "had"}, "the student has no module 'had'; it has: normalize, backbone, head"),
        ({"teacher_logits": "had"}, "the teacher has no module 'had'; it has: normalize, backbone, head"),
        (
            {"features_weight": 1.0, "student_features": "backbone.layers.1"},
            "the student's 'backbone.layers.1': the width of its features is unknown",
        ),
    ],
)
def test_mistakes_are_reported_at_once(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distilled(**keys)


def test_modules_that_take_no_part_are_reported() -> None:
    student = task_of()
    student.add_module("idle", nn.Linear(1, 4))
    with pytest.raises(ValueError, match="the student's 'idle' was not called in the forward pass"):
        distilled(student, student_logits="idle")(batch_of(), Clock())


# --- timm's models as teachers ----------------------------------------------------------------------------------------


def teach(**keys: Any) -> Teacher:
    return Teacher(**keys)


def image_teacher(teacher: Teacher, *, logits: bool = True) -> Any:
    return build_teacher(teacher, FACTS, lambda run: nn.Identity(), logits=logits).eval()


def pretrained(folder: Path, classes: int) -> tuple[Any, dict[str, Any]]:
    """timm's own model, and the options that make it "download" these weights from a file."""
    torch.manual_seed(3)
    whole = timm_library.create_model("test_vit", num_classes=classes).eval()
    with torch.no_grad():
        whole.head.weight.normal_()
    torch.save(whole.state_dict(), folder / "teacher.pth")
    return whole, {"pretrained_cfg_overlay": {"file": str(folder / "teacher.pth"), "num_classes": classes}}


def test_a_pretrained_timm_model_teaches_what_it_knows(tmp_path: Path) -> None:
    whole, options = pretrained(tmp_path, 4)
    settings = teach(backbone=lambda c: timm(c, model="test_vit", pretrained=True, options=options))
    teacher = image_teacher(settings)
    images = torch.randint(0, 256, (2, 3, 160, 160), dtype=torch.uint8)
    torch.testing.assert_close(teacher.predict({"image": images})["logits"], whole((images / 255 - 0.5) / 0.5))
    batch = {**batch_of(2), "image": images}
    assert distilled(task_of(), teacher)(batch, Clock())["distill_logits_loss"].isfinite()


def test_a_file_of_weights_makes_a_teacher(tmp_path: Path) -> None:
    whole, _ = pretrained(tmp_path, 4)
    keys: dict[str, Any] = {"backbone": lambda c: timm(c, model="test_vit"), "weights": tmp_path / "teacher.pth"}
    teacher = image_teacher(teach(**keys, mean=[0.2], std=[0.3]))
    images = torch.rand(2, 3, 160, 160)
    torch.testing.assert_close(teacher.predict({"image": images})["logits"], whole((images - 0.2) / 0.3))
    pretrained(tmp_path, 9)
    with pytest.raises(ValueError, match=r"(?s)^weights: they do not fill the teacher; .*head.weight 9x64 -> 4x64"):
        image_teacher(teach(**keys))
    image_teacher(teach(**keys), logits=False)


def test_teachers_that_know_nothing_are_refused(tmp_path: Path) -> None:
    _, options = pretrained(tmp_path, 9)
    drawn = teach(backbone=lambda c: timm(c, model="test_vit"))
    with pytest.raises(ValueError, match="this teacher has no trained weights"):
        image_teacher(drawn)
    other = teach(backbone=lambda c: timm(c, model="test_vit", pretrained=True, options=options))
    with pytest.raises(ValueError, match=r"the teacher's classifier has 9 classes, the data 4; .* logits_weight: 0"):
        image_teacher(other)
    for neither_or_both in (teach(), teach(run=tmp_path, backbone=lambda c: timm(c, model="test_vit"))):
        with pytest.raises(ValueError, match="either a run or a backbone"):
            image_teacher(neither_or_both)
    with pytest.raises(ValueError, match=r"^mean: belongs to a teacher that is a backbone"):
        image_teacher(teach(run=tmp_path, mean=[0.5]))
    grey = task_of(dataset_info=DatasetInfo(8, 1, CLASSES))
    with pytest.raises(ValueError, match=r"^run: .* takes images with 1 channels, the data's have 3"):
        build_teacher(teach(run=tmp_path), FACTS, lambda _: grey, logits=True)
    with pytest.raises(ValueError, match="there is no teacher; give a run, a backbone, teachers or ema_teacher"):
        _ = Distill().fixed_teachers
