import copy
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm as timm_library
import torch
from torch import Tensor, nn
from torch.nn import functional

from opabinia.contracts import Backbone, Batch, Clock, DataMismatch, DatasetInfo, Hook, Predictions, Task
from opabinia.engine.loop.step import total_loss
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.distillation import logits_loss
from opabinia.models.projectors import without_projectors
from opabinia.optim.ema import SavedAverage
from opabinia.tasks.classification import Classification
from opabinia.tasks.distillation import (
    Distill,
    DistilledTask,
    EmaTeacher,
    Teacher,
)
from opabinia.tasks.teachers import CheckTeachers, build_teacher

CLASSES = ("cat", "dog", "emu", "fox")
DATASET_INFO = DatasetInfo(samples=8, channels=3, classes=CLASSES)


class Pool(Backbone):
    """Means of a 2 x 2 grid through one linear layer of the given width and batch norm."""

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


def task_of(width: int = 6, seed: int = 0, dataset_info: DatasetInfo = DATASET_INFO) -> Classification:
    torch.manual_seed(seed)
    return Classification(dataset_info, backbone=lambda channels: Pool(channels, width))


def batch_of(count: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return {"image": images, "label": torch.arange(count) % len(CLASSES), "id": [str(i) for i in range(count)]}


RUN = Path("runs/teacher")


def make_distilled(student: Task | None = None, teacher: nn.Module | None = None, **keys: Any) -> DistilledTask:
    return DistilledTask(student or task_of(), [teacher or task_of(9, seed=1)], Distill(run=RUN, **keys))


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["soft", "hard", "symmetric", "mse"])
def test_logits_are_compared_at_a_temperature_that_has_a_schedule(kind: Any) -> None:
    student, teacher, batch = task_of(), task_of(9, seed=1), batch_of()
    keys = {"logits_loss": kind, "temperature": 2.0, "temperature_schedule": lambda clock: 1 + clock.progress}
    task = make_distilled(student, teacher, task_weight=0.3, logits_weight=0.7, **keys)
    losses = task(batch, Clock(step=10, total_steps=10))
    logits, teacher_logits = student.predict(batch)["logits"], teacher.predict(batch)["logits"]
    torch.testing.assert_close(losses["distill_logits_loss"], 0.7 * logits_loss(logits, teacher_logits, kind, 4.0))
    torch.testing.assert_close(losses["loss"], 0.3 * Classification.forward(student, batch, Clock())["loss"])
    torch.testing.assert_close(total_loss(losses)[0], losses["loss"] + losses["distill_logits_loss"])
    if kind == "hard":
        expected = functional.cross_entropy(logits, teacher_logits.argmax(1))
        torch.testing.assert_close(losses["distill_logits_loss"], 0.7 * expected)


@pytest.mark.parametrize("classes", [("fox", "dog"), ("ant", "fox", "cat", "bee", "dog"), ("dog", "cat", "fox", "emu")])
def test_logits_of_the_classes_that_both_know_are_compared_by_name(classes: tuple[str, ...]) -> None:
    student, batch = task_of(), batch_of()
    teacher = task_of(9, seed=1, dataset_info=replace(DATASET_INFO, classes=classes))
    loss = make_distilled(student, teacher, logits_weight=1.0)(batch, Clock())["distill_logits_loss"]
    shared = [name for name in classes if name in CLASSES]
    logits, teacher_logits = (
        model.predict(batch)["logits"][:, [names.index(name) for name in shared]]
        for model, names in ((student, CLASSES), (teacher, classes))
    )
    torch.testing.assert_close(loss, logits_loss(logits, teacher_logits, "soft"))


def test_symmetric_divergence_equals_fastreids() -> None:
    golden = json.loads((Path(__file__).parents[1] / "golden" / "fastreid" / "jsdiv.json").read_text())
    student, teacher = (torch.tensor(golden["inputs"][key]) for key in ("student", "teacher"))
    for key, temperature in (("loss", 16.0), ("loss_T1", 1.0)):
        loss = logits_loss(student, teacher, "symmetric", temperature).item()
        assert loss == pytest.approx(golden["outputs"][key], rel=golden["tolerance"])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", lambda s, t: 1 - functional.cosine_similarity(s, t).mean()),
        ("mse", lambda s, t: (s - t).square().mean()),
        ("smooth_l1", lambda s, t: functional.smooth_l1_loss(s, t)),
    ],
)
@pytest.mark.parametrize("width", [6, 9])
def test_features_of_another_width_go_through_a_projector(kind: str, expected: Any, width: int) -> None:
    teacher, batch = task_of(width, seed=1), batch_of()
    task = make_distilled(teacher=teacher, logits_weight=0.0, features_weight=2.0, features_loss=kind)
    student = task.task.features(batch)["embedding"]
    projectors = [module for name, module in task.task.named_children() if name == "distill_projector"]
    assert len(projectors) == (width != 6)
    for projector in projectors:
        student = projector(student)
    losses = task(batch, Clock())
    assert {name for name in losses if "loss" in name} == {"loss", "distill_features_loss"}
    torch.testing.assert_close(
        losses["distill_features_loss"], 2 * expected(student, teacher.features(batch)["embedding"])
    )
    losses["distill_features_loss"].backward()
    assert all(param.grad is not None for module in projectors for param in module.parameters())


class CustomLosses(Classification):
    """Returns its losses in a custom form."""

    form: Any = staticmethod(lambda loss: loss)

    def forward(self, batch: Batch, clock: Clock) -> Any:
        return self.form(super().forward(batch, clock)["loss"])


@pytest.mark.parametrize(
    ("form", "expected_loss"),
    [
        (lambda loss: loss, lambda loss: loss),
        (lambda loss: [loss, 2 * loss], lambda loss: 3 * loss),
        (lambda loss: {"a_loss": loss, "b_loss": loss, "accuracy": 7 * loss}, lambda loss: 2 * loss),
        (lambda loss: {"total_loss": loss, "a_loss": 5 * loss}, lambda loss: loss),
    ],
)
def test_losses_of_any_form_are_weighted(form: Any, expected_loss: Any) -> None:
    torch.manual_seed(0)
    student = CustomLosses(DATASET_INFO, backbone=Pool)
    student.form = form
    batch = batch_of()
    student_loss = Classification.forward(student, batch, Clock())["loss"]
    task = make_distilled(student, task_weight=0.25, logits_weight=2.0, features_weight=0.5)
    losses = task(batch, Clock())
    distillation_loss = losses["distill_logits_loss"] + losses["distill_features_loss"]
    torch.testing.assert_close(total_loss(losses)[0], 0.25 * expected_loss(student_loss) + distillation_loss)
    if "accuracy" in losses:
        torch.testing.assert_close(losses["accuracy"], 7 * student_loss)


def test_shapes_that_differ_are_reported() -> None:
    teacher = task_of(seed=1, dataset_info=DatasetInfo(8, channels=3, classes=tuple("01234")))
    with pytest.raises(
        DataMismatch, match=r"the student's logits are of shape \(8, 4\), the teacher's of shape \(8, 5\)"
    ):
        make_distilled(teacher=teacher)(batch_of(), Clock())


# --- student and teachers ---------------------------------------------------------------------------------------------


def test_the_student_is_saved_with_its_projector() -> None:
    names = set(task_of().state_dict())
    state = make_distilled(features_weight=1.0).task.state_dict()
    assert set(state) == names | {"distill_projector.weight", "distill_projector.bias"}
    assert set(without_projectors(state)) == names
    assert set(make_distilled().task.state_dict()) == names, "logits need no projector"


class HookedTask(Classification):
    """A task with hooks."""

    def hooks(self, dataset_info: DatasetInfo) -> list[Hook]:
        return [Hook(), Hook()]


def test_hooks_are_those_of_the_student_and_its_teachers() -> None:
    task = make_distilled(HookedTask(DATASET_INFO, backbone=Pool), ema_teacher=EmaTeacher())
    hooks = task.hooks(DATASET_INFO)
    assert [type(hook) for hook in hooks] == [Hook, Hook, SavedAverage, CheckTeachers]


def test_gradients_equal_those_computed_by_hand() -> None:
    """The student's running statistics are updated as well; the teacher's are not."""
    student, teacher, batch = task_of(), task_of(9, seed=1), batch_of()
    reference, teacher_state = copy.deepcopy(student), copy.deepcopy(teacher.state_dict())
    task = make_distilled(student, teacher).train()
    total_loss(task(batch, Clock()))[0].backward()
    assert isinstance(student.backbone, Pool) and student.backbone.calls == 1
    with torch.no_grad():
        teacher_log_probabilities = teacher.predict(batch)["logits"].log_softmax(1)
    logits = reference.train().head(reference.backbone(reference.normalize(batch["image"])))
    expected_loss = 0.5 * functional.cross_entropy(logits, batch["label"]) + 0.5 * functional.kl_div(
        logits.log_softmax(1), teacher_log_probabilities, reduction="batchmean", log_target=True
    )
    expected_loss.backward()
    for (name, param), expected in zip(student.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(param.grad, expected.grad, msg=name)
    torch.testing.assert_close(student.state_dict(), reference.state_dict())
    torch.testing.assert_close(teacher.state_dict(), teacher_state)
    assert not any(param.requires_grad for param in teacher.parameters())


def test_teachers_are_no_part_of_the_student() -> None:
    student, teacher = task_of(), task_of(9, seed=1)
    task = make_distilled(student, teacher, ema_teacher=EmaTeacher())
    assert task.average is not None and not {teacher, task.average} & {*student.modules()}
    for mode in (True, False):
        assert task.train(mode).training == student.training == student.backbone.training == mode
        assert not any(module.training for model in (teacher, task.average) for module in model.modules())
    assert all(param.requires_grad for param in student.parameters())
    text = str(task)
    assert "(task): Classification" in text and "(average): Classification" in text
    assert re.search(r"\(teachers\): ModuleList\(\s+\(0\): Classification", text)


def test_copies_of_student_and_distillation_record_their_own_outputs() -> None:
    task, batch = make_distilled(features_weight=1.0, ema_teacher=EmaTeacher()).eval(), batch_of()
    expected = task(batch, Clock())
    student, clone = copy.deepcopy(task.task), copy.deepcopy(task)
    with torch.no_grad():
        for param in clone.task.parameters():
            param.zero_()
    student(batch, Clock())
    assert clone(batch, Clock())["distill_logits_loss"] != expected["distill_logits_loss"]
    torch.testing.assert_close(task(batch, Clock()), expected)


# --- several teachers -------------------------------------------------------------------------------------------------


def two_Teacher(**keys: Any) -> Distill:
    return Distill(teachers=[Teacher(run=RUN), Teacher(run=RUN)], **keys)


def test_losses_of_several_teachers_are_averaged() -> None:
    keys: dict[str, Any] = {"features_weight": 1.0, "temperature": 16.0}
    teachers, batch = [task_of(seed=1), task_of(seed=2)], batch_of()
    single = [make_distilled(teacher=copy.deepcopy(teacher), **keys)(batch, Clock()) for teacher in teachers]
    losses = DistilledTask(task_of(), teachers, two_Teacher(**keys))(batch, Clock())
    for name in ("distill_logits_loss", "distill_features_loss"):
        torch.testing.assert_close(losses[name], (single[0][name] + single[1][name]) / 2)
    assert losses["loss"] == single[0]["loss"]


def test_each_teacher_of_another_width_has_a_projector() -> None:
    keys: dict[str, Any] = {"features_weight": 1.0, "ema_teacher": EmaTeacher()}
    task = DistilledTask(task_of(), [task_of(seed=1), task_of(9, seed=2)], two_Teacher(**keys))
    projector_keys = {"distill_projector_2.weight", "distill_projector_2.bias"}
    assert set(task.task.state_dict()) == set(task_of().state_dict()) | projector_keys
    assert task(batch_of(), Clock())["distill_features_loss"].isfinite()


class MirrorAveraged(Classification):
    """Predicts the mean of the logits of an image and its mirror image, as re-identification does."""

    def predict(self, batch: Batch) -> Predictions:
        logits = super().predict(batch)["logits"]
        return {"logits": (logits + super().predict({**batch, "image": batch["image"].flip(-1)})["logits"]) / 2}


def test_a_teachers_predictions_for_mirror_images_are_ignored() -> None:
    torch.manual_seed(1)
    teacher, batch = MirrorAveraged(DATASET_INFO, backbone=Pool), batch_of()
    keys: dict[str, Any] = {"features_weight": 1.0}
    expected = make_distilled(teacher=task_of(seed=1), **keys)(batch, Clock())
    torch.testing.assert_close(make_distilled(teacher=teacher, **keys)(batch, Clock()), expected)


# --- EMA teacher ------------------------------------------------------------------------------------------------------


def task_with_ema_teacher(momentum: float, **keys: Any) -> tuple[DistilledTask, Task, Hook]:
    """Return a task with an EMA teacher, the EMA model, and the hook that updates it."""
    task = DistilledTask(task_of(), [], Distill(ema_teacher=EmaTeacher(decay=momentum), **keys))
    assert task.average is not None
    (hook,) = task.hooks(DATASET_INFO)
    hook.start(NO_RUN)
    return task, task.average, hook


NO_RUN: Any = SimpleNamespace(clock=Clock())


def step(task: Task) -> None:
    """Take an SGD step, which updates running statistics as well."""
    total_loss(task.train()(batch_of(), Clock()))[0].backward()
    with torch.no_grad():
        for param in task.parameters():
            if param.grad is not None:
                param -= 0.5 * param.grad
                param.grad = None


def test_the_ema_teacher_uses_its_own_predictions() -> None:
    task, ema_model, hook = task_with_ema_teacher(0.5, logits_loss="symmetric", temperature=16.0, logits_weight=1.0)
    before = next(ema_model.parameters()).clone()
    step(task)
    hook.after_step(NO_RUN)
    torch.testing.assert_close(next(ema_model.parameters()), (before + next(task.task.parameters())) / 2)
    batch = batch_of()
    logits, student_logits = ema_model.predict(batch)["logits"], task.eval().task.predict(batch)["logits"]
    expected = logits_loss(student_logits, logits, "symmetric", 16.0)
    assert expected > 0
    torch.testing.assert_close(task(batch, Clock())["distill_logits_loss"], expected)


def test_losses_are_averaged_over_fixed_and_ema_teachers() -> None:
    teacher, batch = task_of(seed=1), batch_of()
    both = make_distilled(task_of().eval(), teacher, ema_teacher=EmaTeacher())(batch, Clock())["distill_logits_loss"]
    teacher_only = make_distilled(task_of().eval(), teacher)(batch, Clock())["distill_logits_loss"]
    torch.testing.assert_close(both, teacher_only / 2)  # the EMA still equals the student


# --- modules by name --------------------------------------------------------------------------------------------------


def test_inner_layers_can_be_distilled() -> None:
    """Compare inner feature maps of two ResNets; their widths are taken from their last layers."""

    def resnet(model: str) -> Classification:
        return Classification(DATASET_INFO, backbone=lambda channels: timm(channels, model=model))

    student, teacher = resnet("test_resnet"), resnet("test_byobnet")
    keys = {"student_features": "backbone.model.layer3", "teacher_features": "backbone.model.stages.2"}
    task = make_distilled(student, teacher, logits_weight=0.0, features_weight=1.0, features_loss="mse", **keys)
    batch = {**batch_of(2), "image": torch.rand(2, 3, 64, 64)}
    losses = task(batch, Clock())
    losses["distill_features_loss"].backward()
    assert student.backbone.get_parameter("model.layer3.0.conv1.weight").grad is not None


class HalfBatches(Classification):
    """Processes two halves of a batch in turn."""

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        halves = [self.head(self.extract({"image": half})["vectors"]) for half in batch["image"].chunk(2)]
        return {"loss": self.loss(torch.cat(halves), batch["label"])}


def test_outputs_of_several_calls_are_concatenated() -> None:
    torch.manual_seed(0)
    student, batch = HalfBatches(DATASET_INFO, backbone=Pool).eval(), batch_of()
    teacher = task_of(9, seed=1)
    in_halves = make_distilled(student, teacher)(batch, Clock())
    in_one_pass = make_distilled(task_of().eval(), teacher)(batch, Clock())
    for name in ("loss", "distill_logits_loss"):
        torch.testing.assert_close(in_halves[name], in_one_pass[name])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"logits_weight": 0.0}, "logits_weight and features_weight are both 0"),
        ({"student_logits": "had"}, "the student: there is no layer 'had'; near: head"),
        ({"teacher_logits": "had"}, "the teacher: there is no layer 'had'; near: head"),
        (
            {"features_weight": 1.0, "student_features": "backbone.layers.1"},
            "student_features: 'backbone.layers.1': the width of its features is unknown",
        ),
    ],
)
def test_invalid_settings_are_reported_at_construction(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_distilled(**keys)


def test_modules_that_are_not_called_are_reported() -> None:
    student = task_of()
    student.add_module("idle", nn.Linear(1, 4))
    with pytest.raises(ValueError, match="student_logits: 'idle' was not called in the forward pass"):
        make_distilled(student, student_logits="idle")(batch_of(), Clock())


# --- timm's models as teachers ----------------------------------------------------------------------------------------


def image_teacher(teacher: Teacher, *, logits: bool = True) -> Any:
    return build_teacher(teacher, DATASET_INFO, lambda run: nn.Identity(), logits=logits).eval()


def save_pretrained(folder: Path, classes: int) -> tuple[Any, dict[str, Any]]:
    """Return a timm model, and the options to load its weights from a file as pretrained weights."""
    torch.manual_seed(3)
    model = timm_library.create_model("test_vit", num_classes=classes).eval()
    with torch.no_grad():
        model.head.weight.normal_()
    torch.save(model.state_dict(), folder / "teacher.pth")
    return model, {"pretrained_cfg_overlay": {"file": str(folder / "teacher.pth"), "num_classes": classes}}


def test_a_pretrained_timm_model_can_be_the_teacher(tmp_path: Path) -> None:
    model, options = save_pretrained(tmp_path, 4)
    settings = Teacher(backbone=lambda c: timm(c, model="test_vit", pretrained=True, options=options))
    teacher = image_teacher(settings)
    images = torch.randint(0, 256, (2, 3, 160, 160), dtype=torch.uint8)
    torch.testing.assert_close(teacher.predict({"image": images})["logits"], model((images / 255 - 0.5) / 0.5))
    batch = {**batch_of(2), "image": images}
    assert make_distilled(task_of(), teacher)(batch, Clock())["distill_logits_loss"].isfinite()


def test_a_weights_file_can_be_loaded_as_teacher(tmp_path: Path) -> None:
    model, _ = save_pretrained(tmp_path, 4)
    keys: dict[str, Any] = {"backbone": lambda c: timm(c, model="test_vit"), "weights": tmp_path / "teacher.pth"}
    teacher = image_teacher(Teacher(**keys, mean=[0.2], std=[0.3]))
    images = torch.rand(2, 3, 160, 160)
    torch.testing.assert_close(teacher.predict({"image": images})["logits"], model((images - 0.2) / 0.3))
    save_pretrained(tmp_path, 9)
    with pytest.raises(ValueError, match=r"(?s)^weights: they do not fill the teacher; .*head.weight 9x64 -> 4x64"):
        image_teacher(Teacher(**keys))
    image_teacher(Teacher(**keys), logits=False)


def test_invalid_teachers_are_refused(tmp_path: Path) -> None:
    _, options = save_pretrained(tmp_path, 9)
    untrained: Any = partial(timm, model="test_vit")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"backbone": untrained}, "this teacher has no trained weights"),
        (
            {"backbone": partial(untrained, pretrained=True, options=options)},
            r"the teacher's classifier has 9 classes, the data 4; .* logits_weight: 0",
        ),
        ({}, "either a run or a backbone"),
        ({"run": tmp_path, "backbone": untrained}, "either a run or a backbone"),
        ({"run": tmp_path, "mean": [0.5]}, "^mean: belongs to a teacher that is a backbone"),
        ({"run": tmp_path}, "^run: .* takes images with 1 channels, the data's have 3"),
    ]
    grey = task_of(dataset_info=DatasetInfo(8, channels=1, classes=CLASSES))
    for keys, message in cases:
        with pytest.raises(ValueError, match=message):
            build_teacher(Teacher(**keys), DATASET_INFO, lambda run: grey, logits=True)
    with pytest.raises(ValueError, match="there is no teacher; give a run, a backbone, teachers or ema_teacher"):
        _ = Distill().fixed_teachers
