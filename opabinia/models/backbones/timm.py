"""Backbones of the timm library, behind one adapter."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, takewhile
from typing import Any

import timm as timm_library
import torch
from timm.layers import adaptive_avgmax_pool as poolings
from timm.models._manipulate import checkpoint_seq, group_with_matcher
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from opabinia.config import register
from opabinia.contracts import Backbone, DataMismatch, Features, Fraction, Level, Preprocessing, Tokens
from opabinia.models.backbones.multi_scale import MultiScaleFeatures, allow_any_size, freeze_stages
from opabinia.models.lora import Lora, insert_adapters
from opabinia.models.weights.download import UnavailableWeights, are_replaced, pretrained_weights
from opabinia.runtime.log import log


class TimmClassifier(nn.Module):
    """The classifier of a timm model: vectors B x D to logits B x K.

    It keeps its name in timm (``fc``, ``head.fc``), so that a file of the whole model fits.
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
        """The classifier itself, usually ``nn.Linear``."""
        return self.get_submodule(self._path)

    def forward(self, vectors: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.Conv2d):  # 1 x 1, in ResNetV2, DPN and DLA
            vectors = vectors[:, :, None, None]
        logits: Tensor = layer(vectors)
        return logits.flatten(1)


def _check_image_size(patch_embed: Any, inputs: tuple[Tensor, ...]) -> None:
    """Check the size of images (B x C x H x W) for a model with patches.

    Raises:
        DataMismatch: the model takes no images of this size.
    """
    size = tuple(inputs[0].shape[-2:])
    if torch.compiler.is_compiling() or patch_embed.img_size is None:  # exports may have symbolic sizes
        return
    if patch_embed.strict_img_size:
        fits, expected = size == tuple(patch_embed.img_size), "{} x {}".format(*patch_embed.img_size)
    else:
        patch = patch_embed.patch_size
        fits = patch_embed.dynamic_img_pad or not any(length % side for length, side in zip(size, patch, strict=True))
        expected = "multiples of {} x {}".format(*patch)
    if not fits:
        raise DataMismatch(_wrong_size(f"the model takes images of {expected}", size))


def _wrong_size(reason: object, size: Sequence[int]) -> str:
    height, width = size
    return (
        f"the backbone does not take images of {height} x {width}: {reason} (resize or crop them, or set the model's "
        "size by the backbone's options: {img_size: [height, width]})"
    )


class TimmBackbone(Backbone):
    """A timm model without its classifier: images B x C x H x W to pooled features B x D.

    Args:
        model: made by timm; its classifier is removed.
        channels: D.
        preprocessing: preprocessing of its pretrained weights; None for random weights.

    Attributes:
        trained_classes: number of classes of the pretrained classifier; 0 without one.
    """

    def __init__(self, model: nn.Module, channels: int, preprocessing: Preprocessing | None = None) -> None:
        super().__init__()
        net: Any = model
        self.model = model
        self.out_channels = channels
        self.preprocessing = preprocessing
        classes = net.num_classes
        head = remove_classifier(net)
        self.trained_classes = int(classes) if head and preprocessing else 0
        self.map_channels = int(net.num_features)
        # Offsets and tokens need a model that computes its features as timm's VisionTransformer does.
        plain = VisionTransformer
        has_tokens = isinstance(model, plain) and type(model).forward_features is plain.forward_features
        self.token_channels = int(net.embed_dim) if has_tokens else 0
        self.patch_size = tuple(net.patch_embed.patch_size) if has_tokens else None
        if hasattr(getattr(net, "patch_embed", None), "strict_img_size"):
            net.patch_embed.register_forward_pre_hook(_check_image_size)
        self.multi_scale: MultiScaleFeatures | None = None
        self._gives_vectors = True
        self.trained_head = (head,)

    def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to B x D.

        Args:
            images: B x C x H x W.
            offset: B x T, added to every token of a vision transformer, the class token too, right after the position
                embedding (He et al. 2021, TransReID, section 3.3).

        Raises:
            ValueError: an offset is given and the model has no tokens.
        """
        if not self._gives_vectors:
            vectors = self.pyramid_features(images)[-1].mean((2, 3))
        elif offset is None:
            vectors = self.model(images)
        else:
            vectors = self.model.forward_head(self._features(images, offset))  # type: ignore[operator]
        return vectors

    def feature_maps(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
        """B x C x H x W to feature maps (B x M x h x w), channels first whatever their order in timm.

        For a vision transformer these are its patch tokens after the last norm, without class and register tokens.

        Raises:
            ValueError: the features of this model before its pooling have no spatial grid; or see :meth:`forward`.
        """
        return self._to_maps(self._features(images, offset), images.shape[-2:])

    def vectors_and_maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """B x C x H x W to B x D and feature maps; see :meth:`forward` and :meth:`feature_maps`."""
        features = self._features(images, None)
        return self.model.forward_head(features), self._to_maps(features, images.shape[-2:])  # type: ignore[operator]

    def _to_maps(self, features: Tensor, size: Sequence[int]) -> Tensor:
        """Return features before the pooling of images of a size (H, W) as maps (B x M x h x w)."""
        net: Any = self.model
        if features.ndim == 4:
            channels_last = getattr(net, "output_fmt", "NCHW") == "NHWC"
            return features.permute(0, 3, 1, 2) if channels_last else features
        grid = getattr(getattr(net, "patch_embed", None), "dynamic_feat_size", None)
        if grid is None or features.ndim != 3:
            raise ValueError(f"timm's {type(net).__name__} gives no feature maps")
        height, width = grid(size)
        patches = features[:, getattr(net, "num_prefix_tokens", 0) :]
        return patches.transpose(1, 2).reshape(len(patches), -1, height, width)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of an image of this height and width.

        Raises:
            ValueError: this model has no patches.
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
            mask, mask_token = hidden
            # With a dynamic image size timm keeps the grid of patches until it adds their positions.
            mask = mask.view(patches.shape[:-1]).unsqueeze(-1)
            patches = torch.where(mask, mask_token.to(patches.dtype), patches)
        tokens = net._pos_embed(patches)
        prefix = net.num_prefix_tokens
        if kept is not None:
            indices = kept[:, :, None].expand(-1, -1, tokens.shape[-1])
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, indices)], 1)
        # Models that pool tokens have their last norm after the pooling, as fc_norm; the other one is then an identity.
        tokens = net.fc_norm(self._run_blocks(tokens))
        patches = tokens[:, prefix:]
        return Tokens(tokens[:, 0] if net.has_class_token else patches.mean(1), patches)

    def _features(self, images: Tensor, offset: Tensor | None) -> Tensor:
        """Compute the features before the pooling."""
        net: Any = self.model
        if offset is None:
            features: Tensor = net.forward_features(images)
            return features
        if not self.token_channels:
            raise ValueError(f"offset: timm's {type(net).__name__} has no tokens that it could be added to")
        return self._run_blocks(net._pos_embed(net.patch_embed(images)) + offset[:, None])

    def _run_blocks(self, tokens: Tensor) -> Tensor:
        """Run the blocks and the last norm of a vision transformer."""
        net: Any = self.model
        tokens = net.norm_pre(net.patch_drop(tokens))
        tokens = checkpoint_seq(net.blocks, tokens) if net.grad_checkpointing else net.blocks(tokens)
        normalized: Tensor = net.norm(tokens)
        return normalized

    def enable_multi_scale(self) -> list[Level]:
        """Prepare for :meth:`pyramid_features`.

        There is one feature map for each stride from 4 to 32, the last of its size in the model. A plain vision
        transformer gives one, after its last norm if that comes before its pooling; all its blocks have global
        attention (ViTDet has windows in most of them).

        Raises:
            ValueError: timm offers no such feature maps of this model.
        """
        if self.multi_scale is None:
            self.multi_scale = MultiScaleFeatures(self.model)
            allow_any_size(self.model)
        if not self.is_shared:
            self.drop_vector_layers()
        return self.multi_scale.out_levels

    def drop_vector_layers(self) -> None:
        """See :meth:`opabinia.contracts.Backbone.drop_vector_layers`; vectors are then means of the coarsest maps."""
        assert self.multi_scale is not None, "enable_multi_scale() comes first"
        self.multi_scale.prune(self.model)
        self._gives_vectors = False

    def all_features(self, images: Tensor) -> Features:
        """B x C x H x W to all features; see :meth:`opabinia.contracts.Backbone.all_features`."""
        assert self.multi_scale is not None, "enable_multi_scale() comes first"
        output, pyramid = self.multi_scale(self.model, images, with_output=True)
        vectors = self.model.forward_head(output)  # type: ignore[operator]
        return {"vectors": vectors, "maps": self._to_maps(output, images.shape[-2:]), "pyramid": pyramid}

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        """B x C x H x W to feature maps (B x M x h x w) of the levels that :meth:`enable_multi_scale` returned.

        Raises:
            DataMismatch: the model does not take images of this size.
        """
        assert self.multi_scale is not None, "enable_multi_scale() comes first"
        try:
            maps: list[Tensor] = self.multi_scale(self.model, images)[1]
        except AssertionError as error:  # how timm's layers refuse a size
            raise DataMismatch(_wrong_size(error, images.shape[2:])) from error
        return maps

    def keep_dilated_stages(self) -> list[Level]:
        """See :meth:`opabinia.contracts.Backbone.keep_dilated_stages`."""
        assert self.multi_scale is not None, "enable_multi_scale() comes first"
        return [] if self.is_shared else self.multi_scale.keep_dilated_stages(self.model)

    def split_last_stage(self) -> nn.Module:
        """Return the fourth stage of a ResNet; see :meth:`opabinia.contracts.Backbone.split_last_stage`.

        Raises:
            ValueError: this is no ResNet whose last two stages have strides 16 and 32, or several tasks read it.
        """
        if self.is_shared:
            message = "the tasks of a multi-task run share the last stage of the backbone; take a detector with fpn"
            raise ValueError(message)
        assert self.multi_scale is not None, "enable_multi_scale() comes first"
        strides = [level.stride for level in self.multi_scale.out_levels]
        if not isinstance(self.model, ResNet) or strides[-2:] != [16, 32]:
            raise ValueError(
                "running the last stage on regions needs a ResNet whose last feature maps have strides 16 and 32 "
                f"(last_stride: 2); this is a {type(self.model).__name__} with strides {', '.join(map(str, strides))}"
            )
        self.multi_scale.drop_last()
        return self.model.get_submodule("layer4")

    def freeze_stages(self, count: int) -> None:
        """Freeze the stem and the first ``count - 1`` stages, blocks in a plain transformer.

        Raises:
            ValueError: it has fewer stages, or timm does not define them.
        """
        freeze_stages(self.model, count)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile what computes :meth:`pyramid_features` and :meth:`all_features` if these were enabled,
        otherwise :meth:`forward`, and for the other methods each sequence of layers (the blocks of a transformer, the
        stages of a ResNet)."""
        if self.multi_scale is not None:
            self.multi_scale.compile(*args, **kwargs)
        if not self._gives_vectors:
            return
        super().compile(*args, **kwargs)
        for layers in self.model.children():
            if isinstance(layers, nn.Sequential):
                layers.compile(*args, **kwargs)

    def _new_head(self, classes: int) -> nn.Module:
        """Return timm's classifier for this model, so that both together compute the same as timm's whole model. For
        models whose classifier is more than a function of the pooled vector (the two heads of DeiT and LeViT, VOLO,
        CrossViT) it is a linear layer."""
        self.model.reset_classifier(classes)  # type: ignore[operator]
        return remove_classifier(self.model) or nn.Linear(self.out_channels, classes)

    def depths(self) -> dict[str, int]:
        """Depth of each parameter by its name, as timm groups them for layer-wise learning rate decay.

        A head is one deeper than the deepest of them. Parameters that timm groups with its classifier (a last norm)
        belong to the last block here.

        Raises:
            ValueError: timm does not define the layers of this model.
        """
        matcher = getattr(self.model, "group_matcher", None)
        if matcher is None:
            return super().depths()
        unmatched = "\n"  # not a parameter's name: timm puts it into the group of the classifier
        named = chain(self.model.named_parameters(), [(unmatched, None)])
        depths: dict[str, int] = group_with_matcher(named, matcher(coarse=False), reverse=True)
        head = depths.pop(unmatched)
        return {f"model.{name}": min(depth, head - 1) for name, depth in depths.items()}

    def checkpoint_activations(self) -> None:
        """Recompute activations in the backward pass (activation checkpointing).

        Raises:
            ValueError: timm does not support it for this model.
        """
        try:
            self.model.set_grad_checkpointing(True)  # type: ignore[operator]
        except (AttributeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"timm cannot compute the activations of {type(self.model).__name__} again") from error


def remove_classifier(model: Any) -> TimmClassifier | None:
    """Let a timm model end at its pooled vector, and return its former classifier.

    None if there was none, or if it is more than a function of the vector (several heads).
    """
    modules, names = dict(model.named_modules()), set(model.state_dict())
    model.reset_classifier(0)
    _pool_deterministically(model)
    # The innermost module of all removed parameters: head.fc of head.fc.weight and head.fc.bias.
    components = zip(*(name.split(".")[:-1] for name in names - model.state_dict().keys()), strict=False)
    path = ".".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, components))
    layer = modules[path]
    return TimmClassifier(path, layer) if path and not isinstance(layer, nn.ModuleList) else None


_DETERMINISTIC_POOLS = {
    nn.AdaptiveMaxPool2d: poolings.FastAdaptiveMaxPool,
    poolings.AdaptiveAvgMaxPool2d: poolings.FastAdaptiveAvgMaxPool,
    poolings.AdaptiveCatAvgMaxPool2d: poolings.FastAdaptiveCatAvgMaxPool,
}
"""timm's poolings by ``amax``: adaptive max pooling has no deterministic backward pass on GPUs."""


def _pool_deterministically(model: nn.Module) -> None:
    """Replace the global max pooling of a timm model; its outputs stay the same."""
    for module in model.modules():
        if isinstance(module, poolings.SelectAdaptivePool2d) and type(module.pool) in _DETERMINISTIC_POOLS:
            module.add_module("pool", _DETERMINISTIC_POOLS[type(module.pool)]())


@register.backbone
def timm(
    channels: int,
    /,
    *,
    model: str,
    pretrained: bool = False,
    drop_path: Fraction = 0.0,
    options: dict[str, Any] | None = None,
    lora: Lora | None = None,
) -> Backbone:
    """Any model of the timm library, pooled and without classifier.

    Args:
        channels: channels of the images; the first convolution is adapted to them.
        model: timm's name, such as ``resnet18`` or ``vit_small_patch16_224``.
        pretrained: load timm's weights, including those of its classifier (``Backbone.make_head``): from an installed
            package (:mod:`opabinia.models.weights.packages`), else from the cache, else after a download.
        drop_path: stochastic depth (Huang et al. 2016): probability to skip a residual branch.
        options: further keyword arguments of the model in timm, for example ``{global_pool: avg}``,
            ``{img_size: 192}``, ``{drop_rate: 0.1}``.
        lora: freezes the model and trains low-rank adapters instead; null trains the model.

    Raises:
        ValueError: timm has no such model, the model refuses an option, its weights cannot be downloaded, or
            adapters do not fit (:func:`opabinia.models.lora.insert_adapters`).
    """
    if not timm_library.is_model(model):
        near = difflib.get_close_matches(model, timm_library.list_models(), n=3)
        raise ValueError(f"model: timm {timm_library.__version__} has no {model!r}; near: {', '.join(near) or 'none'}")
    kwargs = dict(options or {})
    for name, reason in _FIXED_OPTIONS.items():
        if name in kwargs:
            raise ValueError(f"options: {name} cannot be given here: {reason}")
    if "global_pool" in kwargs and not kwargs["global_pool"]:
        raise ValueError("options: global_pool cannot be empty: a backbone gives one vector per image")
    if drop_path:
        kwargs["drop_path_rate"] = drop_path
    if not pretrained:
        kwargs["num_classes"] = 0
    load = pretrained and not are_replaced()
    packaged = _packaged_weights(model) if load and not kwargs.keys() & _OTHER_WEIGHTS else None
    if packaged is not None:
        kwargs["pretrained_cfg_overlay"] = {"state_dict": packaged}
    try:
        with _weights_of(model, kwargs) if load else nullcontext():
            net: Any = timm_library.create_model(model, pretrained=load, in_chans=channels, **kwargs)
    except UnavailableWeights:
        raise
    except Exception as error:  # timm validates arguments in many ways, also by assertions and failed lookups
        cause = "options" if options else "drop_path" if drop_path else "model"
        remedy = (
            "; {pretrained_strict: false} skips weights that do not fit" if "loading state_dict" in str(error) else ""
        )
        raise ValueError(f"{cause}: timm's {model!r} refuses: {type(error).__name__}: {error}{remedy}") from error
    if packaged is not None:
        del net.pretrained_cfg["state_dict"]  # or every copy of the model would have a copy of them
    # Models with a layer between pooling and classifier have a head_hidden_size.
    width = int(getattr(net, "head_hidden_size", None) or net.num_features)
    backbone = TimmBackbone(net, width, _preprocessing(net.pretrained_cfg, channels) if pretrained else None)
    if lora is not None:
        insert_adapters(backbone, lora)
    return backbone


def _weights_of(model: str, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return the context in which timm loads the pretrained weights of a model."""
    config: Any = timm_library.get_pretrained_cfg(model)
    given = {**(config.to_dict() if config else {}), **(options.get("pretrained_cfg_overlay") or {})}
    url, hub_id = given.get("url", ""), given.get("hf_hub_id")
    if not (url or hub_id) or given.keys() & {"file", "state_dict"} or "pretrained_cfg" in options:
        return nullcontext()
    from opabinia.models.weights.packages import way_without_hub

    return pretrained_weights(
        f"timm's {model!r}",
        url,
        hub_id=hub_id,
        hub_file=given.get("hf_hub_filename"),
        remedy=way_without_hub(_weights_name(model)),
    )


_OTHER_WEIGHTS = {"pretrained_cfg", "pretrained_cfg_overlay"}
"""Options of timm that give a model other weights than those of its name."""


def _weights_name(model: str) -> str:
    """Return timm's name of a model with the tag of its weights: ``resnet18.a1_in1k`` for ``resnet18``."""
    config = timm_library.get_pretrained_cfg(model)
    return f"{config.architecture}.{config.tag}" if config is not None else model


def _packaged_weights(model: str) -> dict[str, Tensor] | None:
    """Return the weights of a model in an installed package, under timm's names; None if no package has them.

    Raises:
        UnavailableWeights: the file is not the known one, or has other tensors than the model.
    """
    from opabinia.models.weights.packages import installed_package  # late: trained models need none of these modules

    try:
        package = installed_package(_weights_name(model))
    except ValueError as error:
        raise UnavailableWeights(f"pretrained: {error}") from error
    if package is None:
        return None
    from opabinia.models.weights.files import read_weights
    from opabinia.models.weights.translation import translate_by_order

    try:
        package.check()
        assert package.path is not None
        with torch.device("meta"):
            expected = timm_library.create_model(package.model).state_dict()
        weights = translate_by_order(read_weights(package.path), expected)
    except ValueError as error:
        raise UnavailableWeights(f"pretrained: {error}") from error
    log.info(
        "pretrained: %s from the package %s (%s; %s)",
        *(package.model, package.distribution, package.license, package.source),
    )
    return weights


_FIXED_OPTIONS = {
    "features_only": "a backbone gives one vector per image",
    "in_chans": "it follows from the data",
    "num_classes": "the task brings its own head",
    "pretrained": "it is a key beside options",
    "drop_path_rate": "it is called drop_path and stands beside options",
}
"""Options of timm that are not allowed here, and why."""


def fit_channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """Return normalization values for images of another number of channels: their mean for each channel."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def _preprocessing(config: Mapping[str, Any], channels: int) -> Preprocessing:
    """Convert timm's ``pretrained_cfg``."""
    height, width = config["input_size"][1:]
    return Preprocessing(
        mean=fit_channels(config["mean"], channels),
        std=fit_channels(config["std"], channels),
        size=(height, width),
        interpolation=config["interpolation"],
        crop=config["crop_pct"],
    )
