from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import Batch, Clock, DataMismatch, DatasetInfo, Tokens
from opabinia.data.transforms.patch_masks import random_patch_mask
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.vit import vit
from opabinia.models.losses.reconstruction import normalize_patches, patchify
from opabinia.models.masked_decoder import MaskedDecoder
from opabinia.tasks.selfsup.mae import MAE
from tests.tasks.selfsup.views import SmallBackbone

DATASET_INFO = DatasetInfo(samples=64, channels=3)
OPTIONS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
DECODER: dict[str, Any] = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 4}


def make_task(options: dict[str, Any] | None = None, **keys: Any) -> MAE:
    torch.manual_seed(0)
    backbone = partial(timm, model="vit_tiny_patch16_224", options={**OPTIONS, **(options or {})})
    return MAE(DATASET_INFO, backbone=backbone, **{**DECODER, **keys})


def batch_of(images: int = 8, size: int = 32, patch_size: int = 8, seed: int = 1) -> Batch:
    """Return images interpolated from their corners, with a quarter of the patches visible."""
    torch.manual_seed(seed)
    patterns = torch.nn.functional.interpolate(torch.rand(images, 3, 2, 2), size=(size, size), mode="bilinear")
    pixels = (patterns * 255).byte()
    masks = [random_patch_mask({"image": image}, patch_size=patch_size)["patch_mask"] for image in pixels]
    return {"image": pixels, "patch_mask": torch.stack(masks), "id": [str(number) for number in range(images)]}


@pytest.mark.parametrize("norm_pixels", [True, False])
def test_the_loss_is_the_error_on_masked_patches(norm_pixels: bool) -> None:
    task, batch = make_task(norm_pixels=norm_pixels).eval(), batch_of()
    images, mask = task.normalize(batch["image"]), batch["patch_mask"]
    visible = torch.stack([(~image_mask).nonzero().flatten() for image_mask in mask])
    predicted = task.decoder(task.backbone.tokens(images, kept=visible), visible, (4, 4))
    target = patchify(images, (8, 8))
    target = normalize_patches(target) if norm_pixels else target
    expected = (predicted - target)[mask].square().mean()
    torch.testing.assert_close(task(batch, Clock())["loss"], expected)


def test_masked_pixels_do_not_reach_the_encoder() -> None:
    """Changes of masked pixels leave the decoder's output unchanged; changes of visible ones do not."""
    outputs: list[Tensor] = []
    task, batch = make_task().eval(), batch_of()
    task.decoder.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach()))
    task(batch, Clock())
    masked_pixels = batch["patch_mask"].view(-1, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    task({**batch, "image": torch.where(masked_pixels, 255 - batch["image"], batch["image"])}, Clock())
    task({**batch, "image": torch.where(masked_pixels, batch["image"], 255 - batch["image"])}, Clock())
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_every_parameter_has_a_gradient_with_any_pooling(pool: str) -> None:
    task = make_task({"global_pool": pool})
    task(batch_of(), Clock())["loss"].backward()
    assert [name for name, param in task.named_parameters() if param.grad is None or not param.grad.any()] == []


def test_the_decoder_encodes_patch_positions() -> None:
    torch.manual_seed(0)
    decoder = MaskedDecoder(6, 5, width=16, depth=1, heads=2).eval()
    tokens = Tokens(torch.randn(1, 6), torch.randn(1, 2, 6))
    decoded = decoder(tokens, torch.tensor([[1, 4]]), (2, 3))
    assert decoded.shape == (1, 6, 5)
    swapped = Tokens(tokens.first, tokens.patches.flip(1))
    torch.testing.assert_close(decoder(swapped, torch.tensor([[4, 1]]), (2, 3)), decoded)
    assert not torch.allclose(decoder(tokens, torch.tensor([[4, 1]]), (2, 3)), decoded, atol=1e-3)
    assert not torch.allclose(decoded[0, 0], decoded[0, 2], atol=1e-3), "masked patches differ by position"


def test_the_decoder_of_the_paper() -> None:
    with torch.device("meta"):
        task = MAE(DATASET_INFO, backbone=partial(timm, model="vit_base_patch16_224"))
    assert len(task.decoder.blocks) == 8 and task.decoder.output.weight.shape == (16 * 16 * 3, 512)
    assert task.decoder.blocks[0].attn.num_heads == 16


def test_images_may_have_several_sizes() -> None:
    task = make_task({"dynamic_img_size": True})
    for size in (32, 48, 32):
        assert task(batch_of(size=size), Clock())["loss"].isfinite()


def test_prediction_needs_no_mask() -> None:
    assert make_task().predict({"image": batch_of()["image"]})["embedding"].shape == (8, 48)


VISIBLE = "of the 16 patches of an image are visible"
DIFFERENT = torch.eye(8, 16, dtype=torch.bool).cummax(0).values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_mask": None}, "end data.train.transforms with random_patch_mask"),
        ({"image": None, "views": ()}, "end data.train.transforms with random_patch_mask"),
        (batch_of(patch_size=4), r"a patch_mask has 64 patches, but images of 32 x 32 have 4 x 4 .* patch_size"),
        (batch_of(size=36, patch_size=4), "images of 36 x 36 cannot be divided"),
        ({"patch_mask": DIFFERENT}, f"8 to 15 {VISIBLE}"),
        ({"patch_mask": torch.ones(8, 16, dtype=torch.bool)}, f"0 to 0 {VISIBLE}"),
        ({"patch_mask": torch.zeros(8, 16, dtype=torch.bool)}, f"16 to 16 {VISIBLE}"),
    ],
)
def test_batches_that_do_not_fit_are_reported(change: dict[str, Any], message: str) -> None:
    batch = {key: value for key, value in {**batch_of(), **change}.items() if value is not None}
    with pytest.raises(DataMismatch, match=message):
        make_task({"dynamic_img_size": True})(batch, Clock())


def test_backbones_and_decoders_that_do_not_fit_are_refused() -> None:
    for backbone in (SmallBackbone, partial(timm, model="test_resnet")):
        with pytest.raises(ValueError, match="backbone: mae masks patches, and this one has none"):
            MAE(DATASET_INFO, backbone=backbone)
    with pytest.raises(ValueError, match="decoder_width: a multiple of 4 and of the 4 heads, not 30"):
        make_task(decoder_width=30)
    overlapping = partial(vit, model="test_vit", image_size=(32, 32), stride=8)
    with pytest.raises(DataMismatch, match="side by side"):
        MAE(DATASET_INFO, backbone=overlapping, **DECODER)(batch_of(patch_size=16), Clock())
