from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opabinia.contracts import Backbone, Batch, Clock, DatasetInfo, Run, Task
from opabinia.models.heads import arcface, cosface, sample_classes
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.losses.metric import circle, proxy_anchor, triplet
from opabinia.models.pooling import Gem
from opabinia.tasks.reid.base import reduction_layer
from opabinia.tasks.reid.baseline import Baseline, CameraEmbedding
from opabinia.tasks.reid.cross_batch_memory import CrossBatchMemory

DATASET_INFO = DatasetInfo(samples=16, channels=3, classes=("ann", "bob", "cid", "dot"), cameras=2, queries=True)


class MapBackbone(Backbone):
    """A convolution with feature maps and mean pooling, which accepts side information as offsets."""

    out_channels = map_channels = token_channels = 6

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 6, 3, stride=2)

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        maps = self.layer(images).relu()
        return maps if offset is None else maps + offset[:, :, None, None]

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        return self.feature_maps(images, offset).mean((2, 3))


def make_task(dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> Baseline:
    torch.manual_seed(0)
    return Baseline(dataset_info, **{"backbone": MapBackbone, **keys})


def batch_of(count: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 12, 8), dtype=torch.uint8, generator=generator)
    numbers = torch.arange(count)
    return {
        "image": images,
        "label": numbers // 2 % 4,
        "camera": numbers % 2,
        "query": numbers % 2 == 0,
        "id": [str(number) for number in numbers.tolist()],
    }


def test_losses_equal_those_of_the_modules() -> None:
    task, batch = (
        make_task(metric_losses=[partial(triplet, margin=0.5), partial(circle, scale=0.1), circle], loss_scale=2.0),
        batch_of(),
    )
    losses = task(batch, Clock())
    assert losses.keys() == {"cross_entropy_loss", "top1", "triplet_loss", "circle_loss", "circle_2_loss", "anchors"}

    task.neck.train()
    pooled = task.backbone(task.normalize(batch["image"]))
    normalized = F.batch_norm(pooled, None, None, training=True)
    logits = normalized @ task.head.weight.T
    torch.testing.assert_close(losses["cross_entropy_loss"], 2 * cross_entropy(logits, batch["label"]))
    torch.testing.assert_close(losses["triplet_loss"], triplet(pooled, batch["label"], margin=0.5))
    torch.testing.assert_close(losses["circle_loss"], circle(pooled, batch["label"], scale=0.1))
    assert losses["anchors"] == 1
    assert losses["top1"] == (logits.argmax(1) == batch["label"]).float().mean()


def test_metric_losses_may_use_the_feature_after_the_neck() -> None:
    before, after = (
        make_task(metric_losses=[triplet], metric_feature=metric_feature) for metric_feature in ("before", "after")
    )
    batch = batch_of()
    assert before(batch, Clock())["triplet_loss"] != after(batch, Clock())["triplet_loss"]
    embedding = before.train().predict(batch)["embedding"]
    torch.testing.assert_close(after(batch, Clock())["triplet_loss"], triplet(embedding, batch["label"]))


def test_the_methods_of_a_task() -> None:
    task, batch = make_task(pooling=Gem, embedding=5).eval(), batch_of()
    assert (
        isinstance(task, Task)
        and not task.requires_full_batch
        and make_task(metric_losses=[triplet]).requires_full_batch
    )
    predictions = task.predict(batch)
    assert predictions["embedding"].shape == (8, 5)
    assert predictions["logits"].shape == (8, 4)
    presenter = task.presenter()
    assert presenter is not None
    assert presenter.readable({name: value[0] for name, value in predictions.items()})["embedding"] == pytest.approx(
        predictions["embedding"][0].tolist(), abs=1e-6
    )
    torch.testing.assert_close(task.features(batch)["embedding"], predictions["embedding"])
    assert task.hooks(DATASET_INFO) == []
    evaluator = task.evaluators(DATASET_INFO)[0]
    evaluator.update(predictions, batch)
    assert set(evaluator.better) <= evaluator.compute([evaluator.state()]).keys()


def test_the_margin_applies_in_training_only() -> None:
    task, batch = make_task(head=partial(arcface, scale=8.0)).eval(), batch_of()
    losses, logits = task(batch, Clock()), task.predict(batch)["logits"]
    assert losses["cross_entropy_loss"] > cross_entropy(logits, batch["label"])
    assert logits.abs().max() <= 8


def test_flip_test_averages_image_and_mirror_image() -> None:
    plain, averaged = make_task().eval(), make_task(flip_test=True).eval()
    batch = batch_of()
    mirrored = {**batch, "image": batch["image"].flip(-1)}
    expected = (plain.predict(batch)["embedding"] + plain.predict(mirrored)["embedding"]) / 2
    torch.testing.assert_close(averaged.predict(batch)["embedding"], expected)
    torch.testing.assert_close(averaged.predict(mirrored)["embedding"], expected)


def test_camera_embeddings_are_used() -> None:
    task, batch = make_task(camera_embedding_scale=3.0).eval(), batch_of()
    other_cameras = {**batch, "camera": 1 - batch["camera"]}
    embedding, other_embedding = (task.predict(inputs)["embedding"] for inputs in (batch, other_cameras))
    assert not torch.allclose(embedding, other_embedding)
    without_camera = {"image": batch["image"], "id": batch["id"]}
    per_camera = (task.predict({**batch, "camera": torch.full((8,), camera)})["embedding"] for camera in (0, 1))
    torch.testing.assert_close(task.predict(without_camera)["embedding"], sum(per_camera) / 2)
    losses = task.train()(batch, Clock())
    losses["cross_entropy_loss"].backward()
    assert task.side.table.grad.abs().sum() > 0


def test_missing_side_information_is_replaced_by_the_mean() -> None:
    side = CameraEmbedding(cameras=2, views=3, width=4, scale=2.0)
    table, count = 2.0 * side.table.view(2, 3, 4), 5
    camera, view, batch = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([2, 0, 1, 1, 2]), {"image": torch.zeros(count)}
    torch.testing.assert_close(side({**batch, "camera": camera, "view": view}), table[camera, view])
    torch.testing.assert_close(side({**batch, "camera": camera}), table.mean(1)[camera])
    torch.testing.assert_close(side({**batch, "view": view}), table.mean(0)[view])
    torch.testing.assert_close(side(batch), table.mean((0, 1)).expand(count, -1))


def test_the_queue_is_updated_once_per_step() -> None:
    task, batch = make_task(cross_batch_memory=CrossBatchMemory(size=12)), batch_of()
    (hook,) = task.hooks(DATASET_INFO)
    run: Run = None  # type: ignore[assignment]  # the hook does not use it
    first = task(batch, Clock())["memory_loss"]
    repeated = task(batch, Clock())["memory_loss"]
    assert first == repeated, "the memory is still empty"
    hook.after_step(run)
    queue = task.memory.queue
    assert queue.labels.tolist() == [*batch["label"].tolist(), -1, -1, -1, -1]
    hook.after_step(run)
    assert queue.pointer == 8, "no new features to store"
    assert task(batch, Clock())["memory_loss"] != first
    assert {"memory.queue.features", "memory.queue.labels", "memory.queue.pointer"} < task.state_dict().keys()


def test_non_finite_features_are_not_stored() -> None:
    task, batch = make_task(cross_batch_memory=CrossBatchMemory(size=8)), batch_of()
    task.memory(torch.full((8, 6), float("nan")), batch["label"])
    task.memory.update()
    assert task.memory.queue.features.isfinite().all() and (task.memory.queue.labels == -1).all()


class Vectors(MapBackbone):
    map_channels = token_channels = 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": None}, "nothing is learned"),
        ({"dataset_info": DatasetInfo(8, classes=("ann",))}, "two identities or more; the training data has 1"),
        ({"camera_embedding_scale": 3.0, "dataset_info": DatasetInfo(8, classes=("a", "b"))}, "neither cameras nor"),
        ({"camera_embedding_scale": 3.0, "backbone": Vectors}, "added to tokens, which Vectors does not have"),
        ({"pooling": Gem, "backbone": Vectors}, "Vectors has no feature maps to pool"),
        (
            {"sampled_classes": 0.5, "loss": None, "metric_losses": [triplet]},
            "it needs a loss, and a head",
        ),
    ],
)
def test_invalid_settings_and_data_are_reported(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(**keys)


def test_evaluation_data_and_labels_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match="an image has one identity; remove mixup and cutmix"):
        make_task()({**batch_of(), "label": torch.full((8, 4), 0.25)}, Clock())
    with pytest.raises(ValueError, match="1 channels, those of training 3"):
        make_task().evaluators(DatasetInfo(8, channels=1))
    with pytest.raises(ValueError, match="have 3 cameras, those of training 2"):
        make_task(camera_embedding_scale=3.0).evaluators(DatasetInfo(8, cameras=3))
    assert make_task().evaluators(DatasetInfo(8, cameras=3)), "without side information any cameras are accepted"


# --- sampled classes --------------------------------------------------------------------------------------------------


def test_a_step_samples_the_classes_of_its_batch_and_random_others() -> None:
    sampled = sample_classes(torch.tensor([7, 3, 7]), 20, 0.25, 0)
    assert len(sampled) == 5 and {3, 7} <= set(sampled.tolist()) and sampled.tolist() == sorted(sampled.tolist())
    assert not torch.equal(sampled, sample_classes(torch.tensor([7, 3, 7]), 20, 0.25, 1))
    assert sample_classes(torch.tensor([7, 3, 7]), 20, 0.0, 0).tolist() == [3, 7]


def test_sampled_classes_by_hand() -> None:
    info = DatasetInfo(samples=16, classes=tuple(map(str, range(40))))
    task = make_task(info, sampled_classes=0.25, head=partial(arcface, margin=0.3))
    batch = {**batch_of(), "label": torch.tensor([5, 5, 9, 9, 31, 31, 30, 30])}
    losses = task(batch, Clock(step=3))
    losses["cross_entropy_loss"].backward()
    sampled = sample_classes(batch["label"], 40, 0.25, 3)
    assert task.head is not None and isinstance(task.head.weight, nn.Parameter) and task.head.weight.grad is not None
    assert task.head.weight.grad.any(1).nonzero().flatten().tolist() == sampled.tolist()
    # The same network with only these classes.
    reference = make_task(DatasetInfo(samples=16, classes=tuple("abcdefghij")), head=partial(arcface, margin=0.3))
    state = task.state_dict()
    reference.load_state_dict({**state, "head.weight": state["head.weight"][sampled]})
    expected = reference({**batch, "label": torch.searchsorted(sampled, batch["label"])}, Clock())
    torch.testing.assert_close(losses, expected)


def test_proxies_are_compared_with_the_whole_batch() -> None:
    task = make_task(loss=proxy_anchor, head=partial(cosface, scale=32.0, margin=0.0))
    assert task.requires_full_batch and not task.compares_samples_of_class
    losses, logits = task(batch_of(), Clock()), task.embed_and_classify(task.extract(batch_of()))["logits"]
    torch.testing.assert_close(losses["proxy_anchor_loss"], proxy_anchor(logits, batch_of()["label"]))


def test_the_layer_before_the_neck_is_linear_without_a_bias() -> None:
    """The batch norm of the neck would remove it."""
    layer = reduction_layer(8, 4)
    assert isinstance(layer, nn.Linear) and layer.weight.shape == (4, 8) and layer.bias is None
    assert isinstance(reduction_layer(8, None), nn.Identity)
