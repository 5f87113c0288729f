"""Backbones: images in, one vector each out. timm's models come in through one closed adapter."""

from __future__ import annotations

import difflib
from typing import Any

import timm as timm_library
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, Fraction


class TimmBackbone(Backbone):
    """A timm model without its classifier: images B x C x H x W to pooled features B x D."""

    def __init__(self, model: nn.Module, channels: int) -> None:
        super().__init__()
        self.model = model
        self.out_channels = channels

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)
        return features


def _channels(net: Any) -> int:
    """Width of the pooled features; models with a layer between pooling and classifier tell it apart."""
    return int(getattr(net, "head_hidden_size", None) or net.num_features)


@register.backbone
def timm(
    channels: int,
    /,
    *,
    model: str,
    pretrained: bool = False,
    drop_path: Fraction = 0.0,
    options: dict[str, Any] | None = None,
) -> Backbone:
    """Any model of the timm library, pooled and without classifier.

    Args:
        channels: channels of the images; the first convolution is made for them.
        model: timm's name of it, such as ``resnet18`` or ``vit_small_patch16_224``.
        pretrained: download timm's weights for it.
        drop_path: stochastic depth (Huang et al. 2016): the chance to skip a residual branch.
        options: further keyword arguments of that model in timm, for example ``{global_pool: avg}``.

    Raises:
        ValueError: timm knows no such model, or the model refuses an option.
    """
    if not timm_library.is_model(model):
        near = difflib.get_close_matches(model, timm_library.list_models(), n=3)
        raise ValueError(f"model: timm {timm_library.__version__} has no {model!r}; near: {', '.join(near) or 'none'}")
    extra = _checked_options(options or {})
    if drop_path:
        extra["drop_path_rate"] = drop_path
    try:
        net = timm_library.create_model(model, pretrained=pretrained, in_chans=channels, num_classes=0, **extra)
    except OSError:  # weights that cannot be fetched: its own text says it best
        raise
    except Exception as error:  # timm checks its arguments in many ways, assertions and failed look-ups among them
        cause = "options" if options else "drop_path" if drop_path else "model"
        raise ValueError(f"{cause}: timm's {model!r} refuses: {type(error).__name__}: {error}") from error
    return TimmBackbone(net, _channels(net))


_DECIDED = {
    "features_only": "a backbone gives one vector an image",
    "in_chans": "it follows from the data",
    "num_classes": "the task brings its own head",
    "pretrained": "it is a key beside options",
    "drop_path_rate": "it is called drop_path and stands beside options",
}


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """A copy, if nothing in it is decided elsewhere."""
    for name, reason in _DECIDED.items():
        if name in options:
            raise ValueError(f"options: {name} cannot be given here: {reason}")
    if "global_pool" in options and not options["global_pool"]:
        raise ValueError("options: global_pool cannot be empty: a backbone gives one vector an image")
    return dict(options)
