"""Rules that all self-supervised methods share: gradients, memories, teachers, resuming, collapse, and input errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.optim.groups import parameter_groups
from opabinia.optim.schedules import constant
from opabinia.runtime.durations import Duration
from opabinia.tasks.selfsup.barlow_twins import BarlowTwins
from opabinia.tasks.selfsup.base import SelfSupervised
from opabinia.tasks.selfsup.byol import BYOL
from opabinia.tasks.selfsup.dino import DINO
from opabinia.tasks.selfsup.jigsaw import Jigsaw
from opabinia.tasks.selfsup.moco import MoCo
from opabinia.tasks.selfsup.moco_v3 import MoCoV3
from opabinia.tasks.selfsup.npid import NPID
from opabinia.tasks.selfsup.pirl import PIRL
from opabinia.tasks.selfsup.rotation import Rotation
from opabinia.tasks.selfsup.simclr import SimCLR
from opabinia.tasks.selfsup.simsiam import SimSiam
from opabinia.tasks.selfsup.swav import SwAV, SwavQueue
from opabinia.tasks.selfsup.vicreg import VICReg
from tests.tasks.selfsup import test_ibot
from tests.tasks.selfsup.views import (
    DATASET_INFO,
    batch_of,
    linear_widths,
    make_task,
    run_at_step,
    sgd,
    train_step,
)


class Method(NamedTuple):
    """A task with narrow layers.

    Attributes:
        views: number of views that it takes; "any": two or more, of any size.
        momentum: of its teacher, and the weight of the student in its update at the middle of a run.
    """

    kind: Callable[..., SelfSupervised]
    keys: dict[str, Any]
    views: int | str = "any"
    momentum: tuple[float, float] | None = None


QUEUE = SwavQueue(length=20, start=Duration(0, "it"))
METHODS = {
    "simclr": Method(SimCLR, {"projection": 8}),
    "byol": Method(BYOL, {"hidden": 32, "projection": 16}, momentum=(0.9, 0.05)),
    "simsiam": Method(SimSiam, {"projection": 32, "hidden": 8}),
    "barlow_twins": Method(BarlowTwins, {"hidden": 32, "projection": 16}),
    "vicreg": Method(VICReg, {"hidden": 32, "projection": 16}),
    "rotation": Method(Rotation, {}),
    "jigsaw": Method(Jigsaw, {"permutations": 3, "hidden": 16}),
    "moco": Method(MoCo, {"projection": 8, "queue": 40}, 2, (0.75, 0.25)),
    "moco_v3": Method(MoCoV3, {"projection": 8, "hidden": 16}, 2, (0.9, 0.05)),
    "swav": Method(SwAV, {"projection": 6, "prototypes": [5, 7], "queue": QUEUE}),
    "swav with a teacher": Method(SwAV, {"projection": 6, "prototypes": [5]}, momentum=(0.75, 0.25)),
    "dino": Method(DINO, {"hidden": 32, "bottleneck": 8, "outputs": 20}, momentum=(0.9, 0.05)),
    "ibot": Method(test_ibot.make_task, {}, momentum=(0.9, 0.05)),
    "npid": Method(NPID, {"projection": 8, "negatives": 20, "temperature": 0.5}, 1),
    "pirl": Method(PIRL, {"projection": 8, "negatives": 20, "temperature": 0.5}, 2),
}
TEACHERS = [name for name, method in METHODS.items() if method.momentum]
WITHOUT_VIEWS = ("rotation", "jigsaw")
OWN_INPUTS = ("ibot", "npid", "pirl")

all_methods = pytest.mark.parametrize("name", METHODS)


def task_of(name: str, dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> Any:
    kind, method_keys, _, momentum = METHODS[name]
    teacher = {"momentum": momentum[0]} if momentum else {}
    if name == "ibot":
        return kind(**teacher, **keys)
    return make_task(kind, dataset_info, **{**method_keys, **teacher, **keys})


def inputs_of(name: str, seed: int = 1, images: int = 16, views: int | None = None) -> Batch:
    if name == "ibot":
        return test_ibot.batch_of(images, seed=seed)
    expected = METHODS[name].views
    batch = batch_of(images, views if views is not None else expected if isinstance(expected, int) else 2, seed)
    return {**batch, "index": (torch.arange(images) + 8 * seed) % 64}


def state_of(task: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.state_dict().items()}


def changed_names(task: nn.Module, before: dict[str, Tensor]) -> set[str]:
    state = task.state_dict()
    return {name for name in before if not torch.equal(state[name].nan_to_num(), before[name].nan_to_num())}


# --- training ---------------------------------------------------------------------------------------------------------


@all_methods
def test_gradients_reach_the_whole_student_and_no_teacher(name: str) -> None:
    task = task_of(name, **({"freeze": Duration(0, "it")} if name.startswith("swav") else {}))
    losses = task(inputs_of(name), Clock())
    sum(value for key, value in losses.items() if "loss" in key).backward()
    teacher = {f"teacher.{key}" for key, _ in task.teacher.named_parameters()} if name in TEACHERS else set()
    assert {key for key, param in task.named_parameters() if not param.requires_grad} == teacher
    without = {key for key, param in task.named_parameters() if param.grad is None or not param.grad.any()}
    # Batch norm removes biases, which are the same for all images.
    assert teacher <= without and all(key.endswith("bias") for key in without - teacher)
    trained = {id(param) for group in parameter_groups(task) for param in group["params"]}
    assert len(trained) == len([*task.parameters()]) - len(teacher)


@all_methods
def test_a_forward_pass_without_a_step_changes_running_statistics_only(name: str) -> None:
    task = task_of(name)
    before = state_of(task)
    task(inputs_of(name), Clock())
    assert all("running_" in key or "num_batches" in key for key in changed_names(task, before))


@all_methods
def test_a_run_that_is_resumed_or_evaluated_between_steps_ends_with_the_same_tensors(name: str) -> None:
    def train(task: SelfSupervised, steps: range, *, evaluates: bool = False) -> list[float]:
        optimizer, losses = sgd(task, momentum=0.0), []
        for step in steps:
            losses.append(train_step(task, inputs_of(name, step), optimizer, step, 6)["total"])
            if evaluates:
                check_validation(task.eval(), name)
                task.train()
        return losses

    uninterrupted, first, second = task_of(name), task_of(name), task_of(name)
    expected = train(uninterrupted, range(6))
    train(first, range(3), evaluates=True)
    with torch.no_grad():
        for value in second.state_dict().values():
            value.zero_()
    second.load_state_dict(first.state_dict())
    assert train(second, range(3, 6)) == expected[3:]
    assert not changed_names(second, state_of(uninterrupted))


@torch.no_grad()
def check_validation(task: SelfSupervised, name: str) -> None:
    """Compare two evaluations of a batch, which has a loss unless the method remembers every training image."""
    batch = inputs_of(name, seed=7)
    first, repeated = (task.predict({**batch, "image": batch["views"][0]}) for _ in range(2))
    assert ("losses/loss" in first) == (name not in ("npid", "pirl", "jigsaw"))
    for key, value in first.items():
        assert torch.equal(value, repeated[key]) and value.isfinite().all() and len(value) == 16


@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("is_constant", [False, True])
def test_the_teacher_is_an_average_of_the_student(name: str, is_constant: bool) -> None:
    assert METHODS[name].momentum
    momentum, weight = METHODS[name].momentum
    schedule = {"momentum_schedule": constant} if is_constant and weight < 1 - momentum else {}
    task = task_of(name, **schedule)
    before = copy.deepcopy(task.teacher)
    with torch.no_grad():
        for param in task.parameters():
            if param.requires_grad:
                param += 1
    for hook in task.hooks(DATASET_INFO):
        hook.after_step(run_at_step(5, 10))
    for key, old in before.named_parameters():
        expected = old.lerp(task.get_parameter(key), 1 - momentum if is_constant else weight)
        torch.testing.assert_close(task.teacher.get_parameter(key), expected)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OWN_INPUTS])
def test_std_is_small_for_collapsed_embeddings(name: str) -> None:
    task, batch = task_of(name).eval(), inputs_of(name)
    collapsed = tuple(view[:1].expand(16, -1, -1, -1) for view in batch["views"])
    if name in WITHOUT_VIEWS:
        collapsed = tuple(torch.full_like(view, 0.5) for view in batch["views"])
    assert task({**batch, "views": collapsed}, Clock())["std"] < 0.02 < task(batch, Clock())["std"]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.views == "any" and name != "ibot"])
def test_views_may_be_many_and_of_several_sizes(name: str) -> None:
    """Neighboring views of one size share a forward pass; some papers take each view by itself."""
    task, batch, passes = task_of(name), inputs_of(name, images=4), []
    if name in WITHOUT_VIEWS:
        batch["views"] = tuple(view[:, :, :9, :9] for view in batch["views"])
    small = tuple(batch["views"][number % 2][:, :, :6, :6] for number in range(3))
    task.backbone.register_forward_hook(lambda module, inputs, output: passes.append(tuple(inputs[0].shape[::2])))
    losses = task({**batch, "views": (*batch["views"], *small)}, Clock())
    assert all(value.isfinite() and value.shape == () for value in losses.values())
    if name in ("byol", "simsiam", "barlow_twins", "vicreg"):
        assert passes == [(4, 10)] * 2 + [(4, 6)] * 3
    elif name not in WITHOUT_VIEWS:
        assert passes[-2:] == [(8, 10), (12, 6)]


# --- evaluation -------------------------------------------------------------------------------------------------------


@all_methods
def test_the_embedding_is_the_output_of_the_trunk(name: str) -> None:
    task = task_of(name).eval()
    image = inputs_of(name)["views"][0]
    assert task.trunk is (task.teacher.backbone if name in ("dino", "ibot") else task.backbone)
    torch.testing.assert_close(task.predict({"image": image})["embedding"], task.trunk(task.normalize(image)))
    with pytest.raises(DataMismatch, match="is evaluated on whole images, not on views"):
        task.predict(inputs_of(name))


def test_evaluators_fit_the_labels() -> None:
    labeled = DatasetInfo(samples=4, channels=1, classes=("a", "b"))
    assert [type(evaluator) for evaluator in task_of("simclr").evaluators(DATASET_INFO)] == [Collapse]
    assert [type(evaluator) for evaluator in task_of("simclr", labeled).evaluators(labeled)] == [Knn, Collapse]
    assert [type(evaluator) for evaluator in task_of("simclr").evaluators(labeled)] == [Collapse]
    with pytest.raises(ValueError, match="its images have 3 channels, those of training 1"):
        task_of("simclr").evaluators(DatasetInfo(samples=4))


# --- networks of the papers -------------------------------------------------------------------------------------------

WIDTHS: dict[str, dict[str, list[int]]] = {
    "simclr": {"projector": [12, 12, 128]},
    "byol": {"projector": [12, 4096, 256], "predictor": [256, 4096, 256]},
    "simsiam": {"projector": [12, 2048, 2048, 2048], "predictor": [2048, 512, 2048]},
    "barlow_twins": {"projector": [12, 8192, 8192, 8192]},
    "vicreg": {"expander": [12, 8192, 8192, 8192]},
    "moco": {"projector": [12, 12, 128]},
    "moco_v3": {"projector": [12, 4096, 4096, 256], "predictor": [256, 4096, 256]},
    "swav": {"projector": [12, 12, 128]},
    "dino": {"head.mlp": [12, 2048, 2048, 256]},
}
LAST_NORM = {("simsiam", "projector"), ("moco_v3", "projector")}
NO_LAST_BIAS = {*LAST_NORM, ("barlow_twins", "projector"), ("vicreg", "expander"), ("moco_v3", "predictor")}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in WIDTHS.items() for part in parts])
def test_the_networks_of_the_papers(name: str, part: str) -> None:
    with torch.device("meta"):
        network = make_task(METHODS[name].kind).get_submodule(part)
    assert linear_widths(network) == WIDTHS[name][part]
    *_, last = network.children()
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    assert isinstance(last, nn.BatchNorm1d) == ((name, part) in LAST_NORM) and not (
        isinstance(last, nn.BatchNorm1d) and last.affine
    )
    assert (layers[-1].bias is None) == ((name, part) in NO_LAST_BIAS)
    has_norms = any(isinstance(layer, nn.BatchNorm1d) for layer in network.children())
    assert has_norms == (name not in ("moco", "dino"))


def test_widths_of_hidden_layers_are_options() -> None:
    assert linear_widths(task_of("moco", hidden=20).projector) == [12, 20, 8]
    assert linear_widths(task_of("swav", hidden=20).projector) == [12, 20, 6]
    assert linear_widths(task_of("simclr", hidden=20, layers=3).projector) == [12, 20, 20, 8]
    assert linear_widths(task_of("simsiam", layers=2).projector) == [12, 32, 32]


FULL_BATCH = {"simclr", "barlow_twins", "vicreg", "moco", "moco_v3", "swav", "swav with a teacher", "npid", "pirl"}


@all_methods
def test_losses_that_compare_images_need_the_full_batch(name: str) -> None:
    assert task_of(name).requires_full_batch == (name in FULL_BATCH)


# --- input errors -----------------------------------------------------------------------------------------------------

TWO_OR_MORE = "learns from 2 views or more of an image; data.train.transforms gives"
TWO = "learns from 2 views of an image; data.train.transforms gives"
TOO_FEW_IMAGES = "learns from 2 images or more per process, not 1; raise data.batch_size"
WRONG = [
    *((name, {"views": 1}, f"{TWO_OR_MORE} 1") for name in METHODS if METHODS[name].views == "any"),
    *((name, {"views": 0}, f"{TWO_OR_MORE} none; add views") for name in METHODS if METHODS[name].views == "any"),
    *((name, {"views": views}, f"{TWO} {views}") for name in ("moco", "moco_v3", "pirl") for views in (1, 3)),
    ("npid", {"views": 0}, "learns from 1 views or more of an image; data.train.transforms gives none; add views"),
    *((name, {"images": 1}, TOO_FEW_IMAGES) for name in METHODS if name not in ("rotation", "ibot")),
]
WRONG = [case for case in WRONG if case[0] not in (*WITHOUT_VIEWS, "ibot") or "images" in case[1]]


@pytest.mark.parametrize(("name", "batch", "message"), WRONG)
def test_batches_that_do_not_fit_are_reported(name: str, batch: dict[str, int], message: str) -> None:
    with pytest.raises(DataMismatch, match=f"^{type(task_of(name)).__name__} {message}"):
        task_of(name)(inputs_of(name, **batch), Clock())


@pytest.mark.parametrize("name", ["npid", "pirl"])
def test_images_without_indices_are_reported(name: str) -> None:
    batch = inputs_of(name)
    del batch["index"]
    with pytest.raises(DataMismatch, match=r"needs the index of each image, and batches have none; .* indexed"):
        task_of(name)(batch, Clock())
