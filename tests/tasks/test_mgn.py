import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DatasetInfo
from opabinia.models.backbones.timm import timm
from opabinia.models.losses.cross_entropy import cross_entropy
from opabinia.models.losses.metric import triplet
from opabinia.tasks.reid.mgn import MGN

DATASET_INFO = DatasetInfo(samples=8, classes=("ann", "bob", "cid", "dot"), queries=True)


def make_task(**keys: object) -> MGN:
    torch.manual_seed(0)

    def backbone(channels: int) -> object:
        return timm(channels, model="resnet10t", options={"stem_width": 8, "channels": [8, 8, 16, 16]})

    return MGN(DATASET_INFO, backbone=backbone, embedding=6, **keys)  # type: ignore[arg-type]


@pytest.fixture
def batch() -> Batch:
    images = torch.randint(0, 256, (8, 3, 96, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return {"image": images, "label": torch.arange(8) // 2, "id": [str(number) for number in range(8)]}


def test_eight_features_and_five_triplet_losses(batch: Batch) -> None:
    task = make_task(metric_losses=[triplet])
    losses = task(batch, Clock())
    assert losses.keys() == {"cross_entropy_loss", "top1", "triplet_loss", "anchors"}

    branches = task._parts(task.extract(batch))
    cross_entropies = [cross_entropy(part.logits, batch["label"]) for part in branches]
    torch.testing.assert_close(losses["cross_entropy_loss"], 0.125 * sum(cross_entropies))
    b1, b2, b3, b21, b22, b31, b32, b33 = (part.before for part in branches)
    compared: list[Tensor] = [b1, b2, b3, torch.cat([b21, b22], 1), torch.cat([b31, b32, b33], 1)]
    expected = 0.2 * sum(triplet(features, batch["label"]) for features in compared)
    torch.testing.assert_close(losses["triplet_loss"], expected)


def test_the_embedding_concatenates_the_eight_features(batch: Batch) -> None:
    task = make_task().eval()
    predictions = task.predict(batch)
    assert predictions["embedding"].shape == (8, 48)
    assert predictions["logits"].shape == (8, 4)
    torch.testing.assert_close(
        predictions["embedding"], torch.cat([part.after for part in task._parts(task.extract(batch))], 1)
    )
    torch.testing.assert_close(task.features(batch)["embedding"], predictions["embedding"])


def test_every_branch_has_gradients(batch: Batch) -> None:
    task = make_task(metric_losses=[triplet])
    losses = task(batch, Clock())
    (losses["cross_entropy_loss"] + losses["triplet_loss"]).backward()
    without_gradient = [name for name, param in task.named_parameters() if param.requires_grad and param.grad is None]
    assert not without_gradient
