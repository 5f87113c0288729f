import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch
from opabinia.tasks.selfsup.rotation import Rotation, quarter_turns
from tests.tasks.selfsup.views import batch_of, make


def plain(images: int = 5) -> Batch:
    """As a loader without views gives it."""
    return {"image": batch_of(images)["views"][0], "id": [str(number) for number in range(images)]}


def test_a_turn_takes_the_right_edge_up() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    turned = [one[0, 0].tolist() for one in quarter_turns([image])]
    assert turned == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]


def one_by_one(task: Rotation, images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss, and how often the turn is predicted right."""
    losses, right = [], []
    for image in task.normalize(images):
        for turn in range(4):
            logits = task.head(task.backbone(image.rot90(turn, (1, 2))[None]))
            losses.append(F.cross_entropy(logits, torch.tensor([turn])))
            right.append((logits.argmax() == turn).float())
    return torch.stack(losses).mean(), torch.stack(right).mean()


def test_all_four_turns_of_each_image_are_told_apart() -> None:
    task, batch = make(Rotation), plain()
    said = task(batch, Clock())
    loss, right = one_by_one(task, batch["image"])
    torch.testing.assert_close(said["loss"], loss)
    assert said["top1"] == right
    assert said.keys() == {"loss", "top1", "std"}


@pytest.mark.parametrize("views", [1, 3])
def test_views_are_images_like_others(views: int) -> None:
    task, batch = make(Rotation), batch_of(5, views)
    loss, right = one_by_one(task, torch.cat(batch["views"]))
    said = task(batch, Clock())
    torch.testing.assert_close(said["loss"], loss)
    torch.testing.assert_close(said["top1"], right)


def test_views_of_two_sizes() -> None:
    task, batch = make(Rotation), batch_of(5)
    sizes = batch["views"][0], batch["views"][1][:, :, :6, :6]
    expected = [one_by_one(task, one)[0] for one in sizes]
    torch.testing.assert_close(task({**batch, "views": sizes}, Clock())["loss"], torch.stack(expected).mean())


def test_a_single_image_is_enough() -> None:
    task, batch = make(Rotation), plain(1)
    torch.testing.assert_close(task(batch, Clock())["loss"], one_by_one(task, batch["image"])[0])


def test_images_that_are_not_square_are_reported() -> None:
    batch = plain()
    with pytest.raises(
        DataMismatch, match=r"square images, not 10 x 6: .*crop or resize them to a square in data\.train"
    ):
        make(Rotation)({**batch, "image": batch["image"][..., 2:8]}, Clock())
