"""Inflate 2-d weights into 3-d networks (Carreira and Zisserman 2017, I3D, section 2.4)."""

from __future__ import annotations

from textwrap import shorten
from typing import Literal, TypeVar

from torch import Tensor

from opabinia.models.backbones.timm import TimmBackbone, timm
from opabinia.models.backbones.video.base import ClipBackbone

Net = TypeVar("Net", bound=ClipBackbone)
Inflation = Literal["mean", "center"]
"""See :func:`inflate_kernel`."""


def inflate_kernel(kernel: Tensor, frames: int, inflation: Inflation = "mean") -> Tensor:
    """Inflate a 2-d kernel (M x N x h x w) to a 3-d one (M x N x frames x h x w).

    Args:
        frames: temporal size of the result.
        inflation: ``mean`` repeats the kernel for each frame and divides it by their number, so that a static clip
            gives the features of the image, except at its ends, where zero padding replaces the missing frames (for 3
            frames, a third of the sum); ``center`` puts the kernel into the middle frame and 0 elsewhere, so that each
            frame gives the features of the image, also at the ends, and only training starts to use the other frames.
    """
    if inflation == "mean":
        return kernel[:, :, None].expand(-1, -1, frames, -1, -1) / frames
    inflated = kernel.new_zeros(*kernel.shape[:2], frames, *kernel.shape[2:])
    inflated[:, :, frames // 2] = kernel
    return inflated


def load_image_weights(net: Net, channels: int, model: str | None, inflation: Inflation) -> Net:
    """Fill a clip network with the inflated pretrained weights of a timm image network, and take over the
    preprocessing that these were trained with. The weights are downloaded.

    Args:
        net: the clip network.
        channels: channels of the frames.
        model: timm's name of the image network; None: the network stays as it is.
        inflation: see :func:`inflate_kernel`.

    Returns:
        ``net``.

    Raises:
        ValueError: timm has no such model, or its weights do not fill the network.
    """
    if model is None:
        return net
    source = timm(channels, model=model, pretrained=True)
    assert isinstance(source, TimmBackbone)
    target, weights = net.state_dict(), source.model.state_dict()
    inflated = {
        name: inflate_kernel(tensor, target[name].shape[2], inflation) if target[name].ndim > tensor.ndim else tensor
        for name, tensor in weights.items()
        if name in target
    }
    try:
        net.load_state_dict(inflated)
    except RuntimeError as error:
        problems = shorten(str(error), 300, placeholder=" ...")
        raise ValueError(
            f"pretrained_2d: the weights of timm's {model!r} do not fill this network: {problems}"
        ) from error
    net.preprocessing = source.preprocessing
    return net
