"""The backbone of RF-DETR: a DINOv2 vision transformer most of whose layers attend within windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from opabinia.config import register
from opabinia.contracts import Backbone, Count, DataMismatch, Fraction, Level
from opabinia.models.lora import Lora, insert_adapters


@register.backbone(name="windowed_dinov2")
class WindowedDinov2(Backbone):
    """DINOv2 of the transformers library (the extra ``opabinia[detr]``) with windows, as RF-DETR's backbone (Robinson
    et al. 2025): the image is divided into ``num_windows`` x ``num_windows`` windows, and only the layers whose output
    is used attend to all of them. Defaults are those of RF-DETR's small model.

    Weights are RF-DETR's, by ``init.weights``; those of DINOv2 have the same names without the windows.

    Args:
        channels: number of channels of the images.
        width: width of the tokens.
        depth: number of layers.
        heads: number of heads of every attention layer.
        patch_size: height and width of a patch.
        image_size: height and width of the images of the position embedding, which is interpolated for others.
        num_windows: along each side; sides of images are multiples of ``patch_size * num_windows``.
        num_registers: register tokens.
        layers: numbers of the layers, from 1, whose output is used, normalized.
        drop_path: drop path probability of the last layer; others get less, in proportion to their depth.
        lora: freezes the model and trains low-rank adapters instead, for example with
            ``targets: [q_proj, v_proj]``.

    Raises:
        ValueError: the transformers library is not installed, a number in ``layers`` is above ``depth``, or
            adapters do not fit (:func:`opabinia.models.lora.insert_adapters`).
    """

    def __init__(
        self,
        channels: int,
        /,
        *,
        width: Count = 384,
        depth: Count = 12,
        heads: Count = 6,
        patch_size: Count = 16,
        image_size: Count = 512,
        num_windows: Count = 2,
        num_registers: int = 0,
        layers: Sequence[Count] = (3, 6, 9, 12),
        drop_path: Fraction = 0.0,
        lora: Lora | None = None,
    ) -> None:
        try:
            from transformers.models.rf_detr import modeling_rf_detr as library
        except ImportError as error:
            message = "windowed_dinov2 needs the transformers library: pip install 'opabinia[detr]'"
            raise ValueError(message) from error
        if max(layers) > depth:
            raise ValueError(f"layers: at most depth = {depth}, not {max(layers)}")
        super().__init__()
        config = library.RfDetrDinov2Config(
            num_channels=channels,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            patch_size=patch_size,
            image_size=image_size,
            num_windows=num_windows,
            num_register_tokens=num_registers,
            drop_path_rate=drop_path,
            out_indices=list(layers),
            use_mask_token=False,
        )
        self.model: Any = library.RfDetrDinov2Backbone(config)
        self.out_channels = self.map_channels = width
        self._multiple, self._stride, self._depth = patch_size * num_windows, patch_size, depth
        if lora is not None:
            insert_adapters(self, lora)

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return the mean over the last of the feature maps (B x D)."""
        return self.feature_maps(images).mean((2, 3))

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return the last of the feature maps."""
        return self.pyramid_features(images)[-1]

    def enable_multi_scale(self) -> list[Level]:
        """Return one level for each of ``layers``, all with the stride of the patches."""
        return [Level(self.map_channels, self._stride)] * len(self.model.config.out_indices)

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of ``layers``.

        Raises:
            DataMismatch: the sides of the images are not multiples of ``patch_size * num_windows``.
        """
        height, width = images.shape[2:]
        if height % self._multiple or width % self._multiple:
            raise DataMismatch(
                f"windowed_dinov2 takes images whose sides are multiples of {self._multiple} (patch_size * "
                f"num_windows), not {height} x {width}; set task.size_multiple: {self._multiple}"
            )
        return list(self.model(images).feature_maps)

    def depths(self) -> dict[str, int]:
        """Return 0 for the embeddings, N for layer N, and the depth after the last layer for the norm."""
        depths = {}
        for name, _ in self.named_parameters():
            parts = name.split(".")
            inner = int(parts[parts.index("layer") + 1]) + 1 if "layer" in parts else self._depth + 1
            depths[name] = 0 if "embeddings" in parts else inner
        return depths
