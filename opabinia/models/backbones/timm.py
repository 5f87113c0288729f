"""Backbones: images in, one vector each out. timm's models come in through one closed adapter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import timm as timm_library
import torch
from timm.models._manipulate import checkpoint_seq, group_with_matcher
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, DataMismatch, Fraction, Level, Preprocessing, Tokens
from opabinia.models.backbones.multi_scale import Levels, freeze_stages, take_any_size


class TimmClassifier(nn.Module):
    """The classifier of a timm model: vectors B x D to logits B x K.

    It keeps the name that it has in timm (``fc``, ``head.fc``), so that a file of the whole model fits.
    """

    def __init__(self, path: str, layer: nn.Module) -> None:
        super().__init__()
        self._path = path
        *outer, last = path.split(".")
        inner: nn.Module = self
        for name in outer:
            inner.add_module(name, nn.Module())
            inner = inner.get_submodule(name)
        inner.add_module(last, layer)

    @property
    def layer(self) -> nn.Module:
        """The classifier itself, most often ``nn.Linear``."""
        return self.get_submodule(self._path)

    def forward(self, vectors: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.Conv2d):  # 1 x 1, in ResNetV2, DPN and DLA
            vectors = vectors[:, :, None, None]
        logits: Tensor = layer(vectors)
        return logits.flatten(1)


class TimmBackbone(Backbone):
    """A timm model without its classifier: images B x C x H x W to pooled features B x D.

    Args:
        model: made by timm; a classifier is taken off it.
        channels: D.
        preprocessing: what its weights were trained on; None when they were drawn.

    Attributes:
        trained_classes: how many classes the pretrained classifier tells apart; 0 without such a one.
    """

    def __init__(self, model: nn.Module, channels: int, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        self.model = model
        self.out_channels = channels
        self.preprocessing = preprocessing
        dataset_info: Any = model
        classes = dataset_info.num_classes
        head = take_off_classifier(model)
        self.trained_classes = int(classes) if head and preprocessing else 0
        self.map_channels = int(dataset_info.num_features)
        self.token_channels = int(dataset_info.embed_dim) if _takes_offsets(model) else 0
        self.patch_size = tuple(dataset_info.patch_embed.patch_size) if self.token_channels else None
        self.level_maps: Levels | None = None
        # In a tuple it is not a child: it is saved and trained only where make_head hands it out.
        self._trained_head = (head,)

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to B x D.

        Args:
            images: B x C x H x W.
            offset: B x T, added to every token of a vision transformer, the class token too, right after the position
                embedding (He et al. 2021, TransReID, section 3.3).

        Raises:
            ValueError: there is an offset, and no tokens that it could be added to.
        """
        if offset is None:
            vectors: Tensor = self.model(images)
        else:
            vectors = self.model.forward_head(self._features(images, offset))  # type: ignore[operator]
        return vectors

    def maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to feature maps (B x M x h x w), channels first whatever their order in timm.

        Of a vision transformer they are its patch tokens behind the last norm, without class and register tokens.

        Raises:
            ValueError: what this model has before its pooling is no map; or see :meth:`forward`.
        """
        features = self._features(images, offset)
        net: Any = self.model
        if features.ndim == 4:
            channels_last = getattr(net, "output_fmt", "NCHW") == "NHWC"
            return features.permute(0, 3, 1, 2) if channels_last else features
        grid = getattr(getattr(net, "patch_embed", None), "dynamic_feat_size", None)
        if grid is None or features.ndim != 3:
            raise ValueError(f"timm's {type(net).__name__} gives no feature maps")
        height, width = grid(images.shape[-2:])
        patches = features[:, getattr(net, "num_prefix_tokens", 0) :]
        return patches.transpose(1, 2).reshape(len(patches), -1, height, width)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Patches down and across of an image of this height and width.

        Raises:
            ValueError: this model sees no patches.
        """
        net: Any = self.model
        if not self.token_channels:
            return super().grid(size)
        height, width = net.patch_embed.dynamic_feat_size(size)
        return height, width

    def tokens(self, images: Tensor, hidden: tuple[Tensor, Tensor] | None = None, kept: Tensor | None = None) -> Tokens:
        """B x C x H x W to tokens; see :meth:`opabinia.contracts.Backbone.tokens`.

        Raises:
            ValueError: this model has no tokens.
        """
        if not self.token_channels:
            return super().tokens(images, hidden, kept)
        net: Any = self.model
        patches = net.patch_embed(images)
        if hidden is not None:
            mask, stand_in = hidden
            # Where the size may change timm keeps patches on their grid until their places are added.
            mask = mask.view(patches.shape[:-1]).unsqueeze(-1)
            patches = torch.where(mask, stand_in.to(patches.dtype), patches)
        tokens = net._pos_embed(patches)
        prefix = net.num_prefix_tokens
        if kept is not None:
            chosen = kept[:, :, None].expand(-1, -1, tokens.shape[-1])
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, chosen)], 1)
        tokens = net.norm_pre(net.patch_drop(tokens))
        tokens = checkpoint_seq(net.blocks, tokens) if net.grad_checkpointing else net.blocks(tokens)
        # Where timm averages tokens its last norm stands behind that, under another name; the other one does nothing.
        tokens = net.fc_norm(net.norm(tokens))
        patches = tokens[:, prefix:]
        return Tokens(tokens[:, 0] if net.has_class_token else patches.mean(1), patches)

    def _features(self, images: Tensor, offset: Tensor | None) -> Tensor:
        """What the model has before its pooling."""
        net: Any = self.model
        if offset is None:
            features: Tensor = net.forward_features(images)
            return features
        if not self.token_channels:
            raise ValueError(f"offset: timm's {type(net).__name__} has no tokens that it could be added to")
        tokens = net._pos_embed(net.patch_embed(images)) + offset[:, None]
        tokens = net.norm_pre(net.patch_drop(tokens))
        tokens = checkpoint_seq(net.blocks, tokens) if net.grad_checkpointing else net.blocks(tokens)
        features = net.norm(tokens)
        return features

    def use_levels(self) -> list[Level]:
        """From now on :meth:`levels` is what is asked for, and what :meth:`compile` compiles.

        One map for each stride from 4 to 32, the last of its size in the model. A plain vision transformer gives one,
        behind its last norm if that comes before its pooling; all its blocks attend to the whole image (ViTDet has
        windows in most of them).

        Raises:
            ValueError: timm does not tell such maps of this model.
        """
        self.level_maps = Levels(self.model)
        take_any_size(self.model)
        return self.level_maps.given

    def levels(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to feature maps (B x M x h x w) as :meth:`use_levels` told.

        Raises:
            Unfit: the model does not take images of this size.
        """
        assert self.level_maps is not None, "use_levels() comes first"
        try:
            maps: list[Tensor] = self.level_maps(self.model, images)
        except AssertionError as error:  # how timm's layers refuse a size
            height, width = images.shape[2:]
            raise DataMismatch(
                f"timm's {type(self.model).__name__} does not take images of {height} x {width}: {error} "
                "(the model's size is set by the backbone's options: {img_size: [height, width]})"
            ) from error
        return maps

    def freeze_stages(self, count: int) -> None:
        """From now on the stem and the first ``count - 1`` stages learn nothing, blocks in a plain transformer.

        Raises:
            ValueError: it has fewer, or timm does not tell.
        """
        freeze_stages(self.model, count)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile what is asked for: :meth:`levels` behind :meth:`use_levels`, otherwise :meth:`forward`."""
        if self.level_maps is None:
            super().compile(*args, **kwargs)
        else:
            self.level_maps.compile(*args, **kwargs)

    def make_head(self, classes: int) -> nn.Module:
        """The classifier that timm has for this model, so that both together compute what timm's whole model does.

        Of a pretrained model it is the trained one when it has as many classes (it is handed out once); otherwise its
        weights are drawn. For models whose classifier is more than a function of the pooled vector (DeiT's and LeViT's
        two heads, VOLO, CrossViT) it is a linear layer.
        """
        (trained,), self._trained_head = self._trained_head, (None,)
        if trained is not None and classes == self.trained_classes:
            return trained
        self.model.reset_classifier(classes)  # type: ignore[operator]
        return take_off_classifier(self.model) or nn.Linear(self.out_channels, classes)

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, as timm groups them for layer-wise learning rates.

        A head stands one deeper than the deepest of them. What timm groups with its classifier (a last norm) goes with
        the last block here.

        Raises:
            ValueError: timm does not say how this model is layered.
        """
        matcher = getattr(self.model, "group_matcher", None)
        if matcher is None:
            return super().depths()
        nowhere = "\n"  # the name of no parameter: timm puts it where it puts the classifier
        named = chain(self.model.named_parameters(), [(nowhere, None)])
        depths: dict[str, int] = group_with_matcher(named, matcher(coarse=False), reverse=True)
        head = depths.pop(nowhere)
        return {f"model.{name}": min(depth, head - 1) for name, depth in depths.items()}

    def checkpoint_activations(self) -> None:
        """From now on compute activations again in the backward pass.

        Raises:
            ValueError: timm cannot for this model.
        """
        try:
            self.model.set_grad_checkpointing(True)  # type: ignore[operator]
        except (AttributeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"timm cannot compute the activations of {type(self.model).__name__} again") from error


def _takes_offsets(model: nn.Module) -> bool:
    """Whether a model goes from its tokens to its features as timm's VisionTransformer does."""
    return isinstance(model, VisionTransformer) and type(model).forward_features is VisionTransformer.forward_features


def take_off_classifier(model: Any) -> TimmClassifier | None:
    """Make a timm model end at its pooled vector; returns what stood behind.

    None when there was nothing, or when that is more than a function of the vector (several heads).
    """
    modules, names = dict(model.named_modules()), set(model.state_dict())
    model.reset_classifier(0)
    path = _common_path(names - model.state_dict().keys())
    layer = modules[path]
    return TimmClassifier(path, layer) if path and not isinstance(layer, nn.ModuleList) else None


def _common_path(names: Iterable[str]) -> str:
    """The innermost module that holds all of these parameters: ``head.fc`` of ``head.fc.weight, head.fc.bias``."""
    common: list[str] = []
    for places in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(places)) > 1:
            break
        common.append(places[0])
    return ".".join(common)


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
        pretrained: download timm's weights for it, those of its classifier too (``Backbone.make_head``).
        drop_path: stochastic depth (Huang et al. 2016): the chance to skip a residual branch.
        options: further keyword arguments of that model in timm, for example ``{global_pool: avg}``,
            ``{img_size: 192}``, ``{drop_rate: 0.1}``.

    Raises:
        ValueError: timm knows no such model, or the model refuses an option.
    """
    if not timm_library.is_model(model):
        near = difflib.get_close_matches(model, timm_library.list_models(), n=3)
        raise ValueError(f"model: timm {timm_library.__version__} has no {model!r}; near: {', '.join(near) or 'none'}")
    extra = _checked_options(options or {})
    if drop_path:
        extra["drop_path_rate"] = drop_path
    if not pretrained:
        extra["num_classes"] = 0
    try:
        net: Any = timm_library.create_model(model, pretrained=pretrained, in_chans=channels, **extra)
    except OSError:  # weights that cannot be fetched: its own text says it best
        raise
    except Exception as error:  # timm checks its arguments in many ways, assertions and failed look-ups among them
        cause = "options" if options else "drop_path" if drop_path else "model"
        remedy = (
            "; {pretrained_strict: false} leaves out what does not fit" if "loading state_dict" in str(error) else ""
        )
        raise ValueError(f"{cause}: timm's {model!r} refuses: {type(error).__name__}: {error}{remedy}") from error
    return TimmBackbone(net, _channels(net), _preprocessing(net.pretrained_cfg, channels) if pretrained else None)


def _preprocessing(trained: Mapping[str, Any], channels: int) -> Preprocessing:
    """What timm knows of the images. Where the model sees another number of channels, every one gets their mean."""

    def fitted(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels

    height, width = trained["input_size"][1:]
    return Preprocessing(
        mean=fitted(trained["mean"]),
        std=fitted(trained["std"]),
        size=(height, width),
        interpolation=trained["interpolation"],
        crop=trained["crop_pct"],
    )


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
