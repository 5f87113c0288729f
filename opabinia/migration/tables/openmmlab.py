"""Tables for OpenMMLab's configs: sections, keys of the 2.x generation, optimizers and schedules."""

from __future__ import annotations

from typing import Any

from opabinia.migration.tables import read_tables

REASONS, SECTIONS = read_tables("openmmlab", "REASONS", "SECTIONS")

RUNTIME = "not part of a recipe"


MOVED: dict[str, str] = {
    "data.samples_per_gpu": "train_dataloader.batch_size",
    "data.videos_per_gpu": "train_dataloader.batch_size",
    "data.workers_per_gpu": "train_dataloader.num_workers",
    "data.train": "train_dataloader.dataset",
    "data.val": "val_dataloader.dataset",
    "data.test": "test_dataloader.dataset",
    "data.train_dataloader.samples_per_gpu": "train_dataloader.batch_size",
    "optimizer": "optim_wrapper.optimizer",
    "optimizer_config.grad_clip": "optim_wrapper.clip_grad",
    "runner.max_epochs": "train_cfg.max_epochs",
    "runner.max_iters": "train_cfg.max_iters",
    "total_epochs": "train_cfg.max_epochs",
    "evaluation.interval": "train_cfg.val_interval",
    "checkpoint_config": "default_hooks.checkpoint",
    "log_config.interval": "default_hooks.logger.interval",
    "cudnn_benchmark": "env_cfg.cudnn_benchmark",
    "model.pretrained": "model.backbone.init_cfg.checkpoint",
}
"""Keys of the 2.x generation with those of the 3.x generation."""

OPTIMIZERS: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "SGD": (
        "sgd",
        {"momentum": ("momentum", 0.0), "weight_decay": ("weight_decay", 0.0), "nesterov": ("nesterov", False)},
    ),
    **{
        name: (own, {"betas": ("betas", [0.9, 0.999]), "eps": ("eps", 1e-8), "weight_decay": ("weight_decay", decay)})
        for name, own, decay in (("AdamW", "adamw", 0.01), ("Adam", "adam", 0.0))
    },
    "Lamb": (
        "lamb",
        {"betas": ("betas", [0.9, 0.999]), "eps": ("eps", 1e-6), "weight_decay": ("weight_decay", 0.0)},
    ),
    "LARS": (
        "lars",
        {
            "momentum": ("momentum", 0),
            "weight_decay": ("weight_decay", 0),
            "nesterov": ("nesterov", False),
            "eta": ("trust_coefficient", 0.001),
        },
    ),
    "RMSprop": (
        "rmsprop",
        {
            "alpha": ("alpha", 0.99),
            "momentum": ("momentum", 0.0),
            "eps": ("eps", 1e-8),
            "weight_decay": ("weight_decay", 0.0),
        },
    ),
}
"""Optimizers with their names here, and their options with torch's defaults."""

SCHEDULES: dict[str, str] = {
    "MultiStepLR": "multi_step",
    "StepLR": "step",
    "CosineAnnealingLR": "cosine",
    "PolyLR": "polynomial",
    "LinearLR": "linear",
    "ConstantLR": "constant",
}

WARMUPS: dict[str, tuple[str, str, float]] = {
    "LinearLR": ("linear", "start_factor", 1 / 3),
    "ConstantLR": ("constant", "factor", 1 / 3),
}
"""Schedules that warm up, with the mode here, the key of their factor and its default."""

CUSTOM_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "backbone": ("^backbone", ("",)),
    "head": ("^head", ("",)),
    "cls_token": ("cls_token", ("vit_", "deit")),
    "pos_embed": ("pos_embed", ("vit_", "deit")),
    "absolute_pos_embed": ("absolute_pos_embed", ()),
    "relative_position_bias_table": ("relative_position_bias_table", ("swin",)),
    "norm": ("norm", ("swin", "vit_", "deit")),
    "bias": ("bias$", ("",)),
    "mask_token": ("mask_token", ()),  # a vector here
    "predictor": ("^predictor", ("",)),
}
"""Parts of parameter names with their patterns here, and the beginnings of the networks that have such parameters."""
