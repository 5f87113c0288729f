"""RegNets of any size."""

from __future__ import annotations

from timm.models.regnet import RegNet, RegNetCfg

from opabinia.config import register
from opabinia.contracts import Backbone, Count, Fraction, NonNegative, Positive
from opabinia.models.backbones.timm import TimmBackbone


@register.backbone
def regnet(
    channels: int,
    /,
    *,
    depth: Count,
    initial_width: Count,
    slope: NonNegative,
    multiplier: Positive,
    group_width: Count,
    bottleneck_ratio: Positive = 1.0,
    se_ratio: Fraction = 0.25,
    stem_width: Count = 32,
    drop_path: Fraction = 0.0,
) -> Backbone:
    """RegNet of any size: timm's network, whose widths grow linearly and are quantized to stages (Radosavovic et al.
    2020, Designing Network Design Spaces, equations 2 to 4). The sizes of the paper are ``{name: timm, model:
    regnety_032}`` and the like.

    Args:
        channels: channels of the images.
        depth: number of blocks, d.
        initial_width: w_0, a multiple of 8.
        slope: w_a.
        multiplier: w_m, above 1.
        group_width: channels of a group, g.
        bottleneck_ratio: inner width of a block relative to its outer width, 1 / b.
        se_ratio: width of squeeze and excitation relative to a block's input (RegNetY); 0 without (RegNetX).
        stem_width: width of the first convolution.
        drop_path: stochastic depth: probability to skip a residual branch.

    Raises:
        ValueError: these numbers define no network of four stages.
    """
    cfg = RegNetCfg(depth, initial_width, slope, multiplier, group_width, bottleneck_ratio, se_ratio)
    cfg.stem_width = stem_width
    if initial_width % 8 or multiplier <= 1:
        raise ValueError("initial_width must be a multiple of 8, and multiplier above 1")
    try:
        net = RegNet(cfg, in_chans=channels, num_classes=0, drop_path_rate=drop_path)
    except Exception as error:  # timm expects four stages without checking
        raise ValueError(f"depth: these numbers define no RegNet of four stages: {error}") from error
    return TimmBackbone(net, net.num_features)
