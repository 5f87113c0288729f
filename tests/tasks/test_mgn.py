import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DatasetInfo
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.losses.metric import triplet
from opabinia.tasks.reid.mgn import MGN

FACTS = DatasetInfo(samples=8, classes=("ann", "bob", "cid", "dot"), queries=True)


def make(**keys: object) -> MGN:
    torch.manual_seed(0)

    def backbone(channels: int) -> object:
        return timm(channels, model="resnet10t", options={"stem_width": 8, "channels": [8, 8, 16, 16]})

    return MGN(FACTS, backbone=backbone, embedding=6, **keys)  # type: ignore[arg-type]


@pytest.fixture
def batch() -> Batch:
    images = torch.randint(0, 256, (8, 3, 96, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return {"image": images, "label": torch.arange(8) // 2, "id": [str(number) for number in range(8)]}


def test_eight_features_five_comparisons(batch: Batch) -> None:
    task = make(metric_losses=[triplet])
    said = task(batch, Clock())
    assert said.keys() == {"cross_entropy_loss", "top1", "triplet_loss", "anchors"}

    found = task._parts(batch)
    losses = [cross_entropy(part.logits, batch["label"]) for part in found]
    torch.testing.assert_close(said["cross_entropy_loss"], 0.125 * sum(losses))
    b1, b2, b3, b21, b22, b31, b32, b33 = (part.before for part in found)
    compared: list[Tensor] = [b1, b2, b3, torch.cat([b21, b22], 1), torch.cat([b31, b32, b33], 1)]
    expected = 0.2 * sum(triplet(features, batch["label"]) for features in compared)
    torch.testing.assert_close(said["triplet_loss"], expected)


def test_what_is_evaluated_are_the_eight_side_by_side(batch: Batch) -> None:
    task = make().eval()
    predictions = task.predict(batch)
    assert predictions["embedding"].shape == (8, 48)
    assert predictions["logits"].shape == (8, 4)
    torch.testing.assert_close(predictions["embedding"], torch.cat([part.after for part in task._parts(batch)], 1))
    torch.testing.assert_close(task.features(batch)["embedding"], predictions["embedding"])


def test_every_branch_learns(batch: Batch) -> None:
    task = make(metric_losses=[triplet])
    said = task(batch, Clock())
    (said["cross_entropy_loss"] + said["triplet_loss"]).backward()
    without = [name for name, one in task.named_parameters() if one.requires_grad and one.grad is None]
    assert not without
