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
from opabinia.tasks.reid.baseline import Baseline, CameraEmbedding
from opabinia.tasks.reid.cross_batch_memory import CrossBatchMemory

FACTS = DatasetInfo(samples=16, channels=3, classes=("ann", "bob", "cid", "dot"), cameras=2, queries=True)


class Maps(Backbone):
    """One convolution, with maps and a mean of its own; it takes offsets."""

    out_channels = map_channels = token_channels = 6

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, 6, 3, stride=2)

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        found = self.layer(images).relu()
        return found if offset is None else found + offset[:, :, None, None]

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        return self.feature_maps(images, offset).mean((2, 3))


def make(dataset_info: DatasetInfo = FACTS, **keys: Any) -> Baseline:
    torch.manual_seed(0)
    return Baseline(dataset_info, backbone=Maps, **keys)


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


def test_losses_are_those_of_its_parts() -> None:
    task, batch = (
        make(metric_losses=[partial(triplet, margin=0.5), partial(circle, scale=0.1)], loss_scale=2.0),
        batch_of(),
    )
    said = task(batch, Clock())
    assert said.keys() == {"cross_entropy_loss", "top1", "triplet_loss", "circle_loss", "anchors"}

    task.neck.train()
    pooled = task.backbone(task.normalize(batch["image"]))
    behind = F.batch_norm(pooled, None, None, training=True)
    logits = behind @ task.head.weight.T
    torch.testing.assert_close(said["cross_entropy_loss"], 2 * cross_entropy(logits, batch["label"]))
    torch.testing.assert_close(said["triplet_loss"], triplet(pooled, batch["label"], margin=0.5))
    torch.testing.assert_close(said["circle_loss"], circle(pooled, batch["label"], scale=0.1))
    assert said["anchors"] == 1
    assert said["top1"] == (logits.argmax(1) == batch["label"]).float().mean()


def test_metric_losses_may_see_the_feature_behind_the_neck() -> None:
    before, after = (make(metric_losses=[triplet], metric_feature=where) for where in ("before", "after"))
    batch = batch_of()
    assert before(batch, Clock())["triplet_loss"] != after(batch, Clock())["triplet_loss"]
    embedding = before.train().predict(batch)["embedding"]
    torch.testing.assert_close(after(batch, Clock())["triplet_loss"], triplet(embedding, batch["label"]))


def test_several_losses_of_one_kind_have_names_of_their_own() -> None:
    said = make(metric_losses=[triplet, partial(triplet, distance="cosine")])(batch_of(), Clock())
    assert {"triplet_loss", "triplet_2_loss"} < said.keys()


def test_the_four_methods() -> None:
    task, batch = make(pooling=Gem, embedding=5).eval(), batch_of()
    assert isinstance(task, Task) and not task.requires_full_batch and make(metric_losses=[triplet]).requires_full_batch
    predictions = task.predict(batch)
    assert predictions["embedding"].shape == (8, 5)
    assert predictions["logits"].shape == (8, 4)
    assert task.readable({name: value[0] for name, value in predictions.items()})["embedding"] == pytest.approx(
        predictions["embedding"][0].tolist(), abs=1e-6
    )
    torch.testing.assert_close(task.features(batch)["embedding"], predictions["embedding"])
    assert task.hooks(FACTS) == []
    evaluator = task.evaluators(FACTS)[0]
    evaluator.update(predictions, batch)
    assert set(evaluator.better) <= evaluator.compute([evaluator.state()]).keys()


def test_the_shift_of_the_neck_stays_zero() -> None:
    task = make(metric_losses=[triplet])
    optimizer = torch.optim.SGD([one for one in task.parameters() if one.requires_grad], lr=1.0, weight_decay=0.1)
    sum(value for name, value in task(batch_of(), Clock()).items() if "loss" in name).backward()
    weight = task.neck.weight.detach().clone()
    optimizer.step()
    assert not task.neck.bias.any() and not torch.equal(task.neck.weight, weight)


def test_a_margin_is_there_in_training_only() -> None:
    task, batch = make(head=partial(arcface, scale=8.0)).eval(), batch_of()
    said, logits = task(batch, Clock()), task.predict(batch)["logits"]
    assert said["cross_entropy_loss"] > cross_entropy(logits, batch["label"])
    assert logits.abs().max() <= 8


def test_flip_test_is_the_mean_over_image_and_mirror_image() -> None:
    plain, both = make().eval(), make(flip_test=True).eval()
    batch = batch_of()
    mirrored = {**batch, "image": batch["image"].flip(-1)}
    expected = (plain.predict(batch)["embedding"] + plain.predict(mirrored)["embedding"]) / 2
    torch.testing.assert_close(both.predict(batch)["embedding"], expected)
    torch.testing.assert_close(both.predict(mirrored)["embedding"], expected)


def test_camera_embeddings_are_used() -> None:
    task, batch = make(camera_embedding_scale=3.0).eval(), batch_of()
    other = {**batch, "camera": 1 - batch["camera"]}
    seen, swapped = (task.predict(one)["embedding"] for one in (batch, other))
    assert not torch.allclose(seen, swapped)
    nobody_told = {"image": batch["image"], "id": batch["id"]}
    both = (task.predict({**batch, "camera": torch.full((8,), camera)})["embedding"] for camera in (0, 1))
    torch.testing.assert_close(task.predict(nobody_told)["embedding"], sum(both) / 2)
    said = task.train()(batch, Clock())
    said["cross_entropy_loss"].backward()
    assert task.side.table.grad.abs().sum() > 0


def test_what_nobody_reports_of_an_image_is_the_mean_of_all_there_is() -> None:
    side = CameraEmbedding(cameras=2, views=3, width=4, scale=2.0)
    table, count = 2.0 * side.table.view(2, 3, 4), 5
    camera, view, batch = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([2, 0, 1, 1, 2]), {"image": torch.zeros(count)}
    torch.testing.assert_close(side({**batch, "camera": camera, "view": view}), table[camera, view])
    torch.testing.assert_close(side({**batch, "camera": camera}), table.mean(1)[camera])
    torch.testing.assert_close(side({**batch, "view": view}), table.mean(0)[view])
    torch.testing.assert_close(side(batch), table.mean((0, 1)).expand(count, -1))


def test_the_queue_is_filled_once_a_step() -> None:
    task, batch = make(cross_batch_memory=CrossBatchMemory(size=12)), batch_of()
    (hook,) = task.hooks(FACTS)
    run: Run = None  # type: ignore[assignment]  # the hook does not look at it
    first = task(batch, Clock())["memory_loss"]
    again = task(batch, Clock())["memory_loss"]
    assert first == again, "nothing was remembered yet"
    hook.after_step(run)
    queue = task.memory.queue
    assert queue.labels.tolist() == [*batch["label"].tolist(), -1, -1, -1, -1]
    hook.after_step(run)
    assert queue.pointer == 8, "nothing new to remember"
    assert task(batch, Clock())["memory_loss"] != first
    assert {"memory.queue.features", "memory.queue.labels", "memory.queue.pointer"} < task.state_dict().keys()


def test_features_that_are_not_finite_are_not_remembered() -> None:
    task, batch = make(cross_batch_memory=CrossBatchMemory(size=8)), batch_of()
    task.memory(torch.full((8, 6), float("nan")), batch["label"])
    task.memory.update()
    assert task.memory.queue.features.isfinite().all() and (task.memory.queue.labels == -1).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": None}, "nothing is learned"),
        ({"dataset_info": DatasetInfo(8, classes=("ann",))}, "two identities or more; the training data has 1"),
        (
            {"dataset_info": DatasetInfo(8, classes=("ann", "bob")), "camera_embedding_scale": 3.0},
            "neither cameras nor views",
        ),
    ],
)
def test_what_cannot_be_learned_is_reported(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**keys)


def test_a_backbone_without_maps_or_tokens_is_reported() -> None:
    class Vectors(Maps):
        map_channels = token_channels = 0

    for keys, message in (
        ({"pooling": Gem}, "no feature maps to pool"),
        ({"camera_embedding_scale": 3.0}, "added to tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            Baseline(FACTS, backbone=Vectors, **keys)


def test_a_set_it_cannot_be_evaluated_on_is_reported() -> None:
    with pytest.raises(ValueError, match="1 channels, those of training 3"):
        make().evaluators(DatasetInfo(8, channels=1))
    with pytest.raises(ValueError, match="have 3 cameras, those of training 2"):
        make(camera_embedding_scale=3.0).evaluators(DatasetInfo(8, cameras=3))
    assert make().evaluators(DatasetInfo(8, cameras=3)), "without side information any camera will do"


def test_mixed_labels_are_refused() -> None:
    batch = batch_of()
    with pytest.raises(ValueError, match="one identity"):
        make()({**batch, "label": F.one_hot(batch["label"], 4).float()}, Clock())


# --- sampled classes --------------------------------------------------------------------------------------------------


def test_a_step_learns_from_the_classes_of_its_batch_and_random_others() -> None:
    chosen = sample_classes(torch.tensor([7, 3, 7]), 20, 0.25, 0)
    assert len(chosen) == 5 and {3, 7} <= set(chosen.tolist()) and chosen.tolist() == sorted(chosen.tolist())
    assert not torch.equal(chosen, sample_classes(torch.tensor([7, 3, 7]), 20, 0.25, 1))
    assert sample_classes(torch.tensor([7, 3, 7]), 20, 0.0, 0).tolist() == [3, 7]


def test_sampled_classes_by_hand() -> None:
    info = DatasetInfo(samples=16, classes=tuple(map(str, range(40))))
    task = make(info, sampled_classes=0.25, head=partial(arcface, margin=0.3))
    batch = {**batch_of(), "label": torch.tensor([5, 5, 9, 9, 31, 31, 30, 30])}
    losses = task(batch, Clock(step=3))
    losses["cross_entropy_loss"].backward()
    chosen = sample_classes(batch["label"], 40, 0.25, 3)
    assert task.head is not None and isinstance(task.head.weight, nn.Parameter) and task.head.weight.grad is not None
    assert task.head.weight.grad.any(1).nonzero().flatten().tolist() == chosen.tolist()
    # The same network with these classes alone.
    part = make(DatasetInfo(samples=16, classes=tuple("abcdefghij")), head=partial(arcface, margin=0.3))
    state = task.state_dict()
    part.load_state_dict({**state, "head.weight": state["head.weight"][chosen]})
    whole = part({**batch, "label": torch.searchsorted(chosen, batch["label"])}, Clock())
    torch.testing.assert_close(losses, whole)
    with pytest.raises(ValueError, match="needs a loss, and a head with one weight vector per class"):
        make(sampled_classes=0.5, loss=None, metric_losses=[triplet])


def test_proxies_are_compared_with_the_whole_batch() -> None:
    task = make(loss=proxy_anchor, head=partial(cosface, scale=32.0, margin=0.0))
    assert task.requires_full_batch and not task.compares_samples_of_class
    losses, logits = task(batch_of(), Clock()), task.embed_and_classify(batch_of())["logits"]
    torch.testing.assert_close(losses["proxy_anchor_loss"], proxy_anchor(logits, batch_of()["label"]))
