import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch
from opabinia.tasks.selfsup.rotation import Rotation, quarter_turns
from tests.tasks.selfsup.views import batch_of, make_task


def plain_batch(images: int = 5) -> Batch:
    """Return a batch without views."""
    return {"image": batch_of(images)["views"][0], "id": [str(number) for number in range(images)]}


def test_turns_are_counterclockwise() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    turned = [rotated[0, 0].tolist() for rotated in quarter_turns([image])]
    assert turned == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]


def reference_loss_and_accuracy(task: Rotation, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean loss and the accuracy, computed image by image."""
    losses, correct = [], []
    for image in task.normalize(images):
        for turn in range(4):
            logits = task.head(task.backbone(image.rot90(turn, (1, 2))[None]))
            losses.append(F.cross_entropy(logits, torch.tensor([turn])))
            correct.append((logits.argmax() == turn).float())
    return torch.stack(losses).mean(), torch.stack(correct).mean()


def test_all_four_turns_of_each_image_are_classified() -> None:
    task, batch = make_task(Rotation), plain_batch()
    losses = task(batch, Clock())
    loss, accuracy = reference_loss_and_accuracy(task, batch["image"])
    torch.testing.assert_close(losses["loss"], loss)
    assert losses["top1"] == accuracy
    assert losses.keys() == {"loss", "top1", "std"}


@pytest.mark.parametrize("views", [1, 3])
def test_views_are_treated_as_images(views: int) -> None:
    task, batch = make_task(Rotation), batch_of(5, views)
    loss, accuracy = reference_loss_and_accuracy(task, torch.cat(batch["views"]))
    losses = task(batch, Clock())
    torch.testing.assert_close(losses["loss"], loss)
    torch.testing.assert_close(losses["top1"], accuracy)


def test_views_may_have_several_sizes() -> None:
    task, batch = make_task(Rotation), batch_of(5)
    views = batch["views"][0], batch["views"][1][:, :, :6, :6]
    expected = [reference_loss_and_accuracy(task, view)[0] for view in views]
    torch.testing.assert_close(task({**batch, "views": views}, Clock())["loss"], torch.stack(expected).mean())


def test_images_that_are_not_square_are_reported() -> None:
    batch = plain_batch()
    with pytest.raises(
        DataMismatch, match=r"square images, not 10 x 6: .*crop or resize them to a square in data\.train"
    ):
        make_task(Rotation)({**batch, "image": batch["image"][..., 2:8]}, Clock())
