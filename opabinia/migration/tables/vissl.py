"""Tables for VISSL: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from typing import Any

LR = "OPTIMIZER.param_schedulers.lr"

DECAY = "OPTIMIZER.param_schedulers.weight_decay"

DEFAULTS: dict[str, Any] = {
    "LOG_FREQUENCY": 10,
    "TEST_MODEL": True,
    "TEST_EVERY_NUM_EPOCH": 1,
    "SEED_VALUE": 0,
    "DATA.NUM_DATALOADER_WORKERS": 4,
    **{
        f"DATA.{split}.{key}": value
        for split in ("TRAIN", "TEST")
        for key, value in {
            "DATASET_NAMES": ["imagenet1k_folder"],
            "DATA_SOURCES": [],
            "DATA_PATHS": [],
            "BATCHSIZE_PER_REPLICA": 256,
            "TRANSFORMS": [],
            "DROP_LAST": False,
            "DATA_LIMIT": -1,
            "DATA_LIMIT_SAMPLING.SEED": 0,
            "DATA_LIMIT_SAMPLING.IS_BALANCED": False,
        }.items()
    },
    "MODEL.TRUNK.NAME": "resnet",
    "MODEL.TRUNK.RESNETS.DEPTH": 50,
    "MODEL.TRUNK.RESNETS.GROUPS": 1,
    "MODEL.TRUNK.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER": 1,
    "MODEL.TRUNK.RESNETS.NORM": "BatchNorm",
    "MODEL.TRUNK.RESNETS.LAYER4_STRIDE": 2,
    "MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE": 224,
    "MODEL.TRUNK.VISION_TRANSFORMERS.PATCH_SIZE": 16,
    "MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS": 12,
    "MODEL.TRUNK.VISION_TRANSFORMERS.NUM_HEADS": 12,
    "MODEL.TRUNK.VISION_TRANSFORMERS.HIDDEN_DIM": 768,
    "MODEL.TRUNK.VISION_TRANSFORMERS.DROP_PATH_RATE": 0.0,
    "MODEL.HEAD.PARAMS": [],
    "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
    "MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON": False,
    "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY": False,
    "MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [],
    "MODEL.WEIGHTS_INIT.PARAMS_FILE": "",
    "MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN": False,
    "MODEL.AMP_PARAMS.USE_AMP": False,
    "MODEL.GRAD_CLIP.USE_GRAD_CLIP": False,
    "MODEL.GRAD_CLIP.NORM_TYPE": 2.0,
    "MODEL.GRAD_CLIP.MAX_NORM": 1.0,
    "MODEL.CUDA_CACHE.CLEAR_CUDA_CACHE": False,
    "MODEL.CUDA_CACHE.CLEAR_FREQ": 100,
    "LOSS.name": "CrossEntropyLoss",
    "LOSS.simclr_info_nce_loss.temperature": 0.1,
    "LOSS.multicrop_simclr_info_nce_loss.temperature": 0.1,
    "LOSS.moco_loss.queue_size": 65536,
    "LOSS.moco_loss.momentum": 0.999,
    "LOSS.moco_loss.temperature": 0.2,
    "LOSS.swav_loss.temperature": 0.1,
    "LOSS.swav_loss.epsilon": 0.05,
    "LOSS.swav_loss.num_iters": 3,
    "LOSS.swav_loss.crops_for_assign": [0, 1],
    "LOSS.swav_loss.temp_hard_assignment_iters": 0,
    "LOSS.swav_loss.queue.queue_length": 0,
    "LOSS.swav_loss.queue.start_iter": 0,
    "LOSS.deepclusterv2_loss.temperature": 0.1,
    "LOSS.deepclusterv2_loss.num_clusters": [3000, 3000, 3000],
    "LOSS.deepclusterv2_loss.kmeans_iters": 10,
    "LOSS.deepclusterv2_loss.memory_params.crops_for_mb": [0],
    "LOSS.dino_loss.momentum": 0.996,
    "LOSS.dino_loss.student_temp": 0.1,
    "LOSS.dino_loss.teacher_temp_min": 0.04,
    "LOSS.dino_loss.teacher_temp_max": 0.07,
    "LOSS.dino_loss.teacher_temp_warmup_iters": 37500,
    "LOSS.dino_loss.ema_center": 0.9,
    "LOSS.barlow_twins_loss.lambda_": 0.0051,
    "LOSS.barlow_twins_loss.scale_loss": 0.024,
    "LOSS.nce_loss_with_memory.loss_type": "nce",
    "LOSS.nce_loss_with_memory.temperature": 0.07,
    "LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives": 16000,
    "LOSS.nce_loss_with_memory.memory_params.momentum": 0.5,
    "LOSS.cross_entropy_multiple_output_single_target.label_smoothing": 0.0,
    "OPTIMIZER.name": "sgd",
    "OPTIMIZER.use_larc": False,
    "OPTIMIZER.larc_config.clip": False,
    "OPTIMIZER.larc_config.trust_coefficient": 0.001,
    "OPTIMIZER.weight_decay": 0.0001,
    "OPTIMIZER.momentum": 0.9,
    "OPTIMIZER.nesterov": False,
    "OPTIMIZER.num_epochs": 90,
    "OPTIMIZER.betas": [0.9, 0.999],
    "OPTIMIZER.regularize_bn": False,
    "OPTIMIZER.regularize_bias": True,
    "OPTIMIZER.non_regularized_parameters": [],
    f"{LR}.auto_lr_scaling.auto_scale": False,
    f"{LR}.auto_lr_scaling.base_value": 0.1,
    f"{LR}.auto_lr_scaling.base_lr_batch_size": 256,
    f"{LR}.auto_lr_scaling.scaling_type": "linear",
    f"{LR}.name": "multistep",
    f"{LR}.update_interval": "epoch",
    f"{LR}.values": [0.1, 0.01, 0.001],
    f"{LR}.milestones": [30, 60],
    f"{LR}.schedulers": [],
    f"{LR}.interval_scaling": [],
    f"{LR}.lengths": [],
    f"{LR}.start_value": 0.1,
    f"{LR}.end_value": 0.0,
    f"{LR}.value": 0.1,
    "CHECKPOINT.CHECKPOINT_FREQUENCY": 1,
    "DISTRIBUTED.NUM_NODES": 1,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 8,
}
"""VISSL's defaults of the keys that are converted."""

_DATA_REASONS = {
    "LABEL_TYPE": "follows from the task",
    "LABEL_SOURCES": "the source contains the labels",
    "LABEL_PATHS": "the source contains the labels",
    "COLLATE_FUNCTION": "follows from the views; for mixup see data.mix",
    "COLLATE_FUNCTION_PARAMS": "see data.mix",
    "MMAP_MODE": "no effect: lists are read once",
    "COPY_TO_LOCAL_DISK": "data is not copied",
    "COPY_DESTINATION_DIR": "data is not copied",
    "ENABLE_QUEUE_DATASET": "data.on_error: skip",
    "DEFAULT_GRAY_IMG_SIZE": "data.on_error: skip drops broken images",
}

REASONS = {
    "VERSION": "internal to VISSL",
    "engine_name": "internal to VISSL",
    "VERBOSE": "there are no levels of logging",
    "TEST_ONLY": "opabinia eval",
    "HOOKS": "the metrics log contains times, and TensorBoard files are written; see opabinia config list hook",
    "TENSORBOARD_SETUP": "TensorBoard files are written",
    "MONITOR_PERF_STATS": "the metrics log contains times",
    "ROLLING_BTIME_FREQ": "the metrics log contains times",
    "MULTI_PROCESSING_METHOD": "workers are forked",
    "METERS": "follows from the task",
    "TRAINER": "see train.step",
    "MACHINE": "train.device; auto uses a GPU if there is one",
    "DISTRIBUTED": "opabinia train --nproc, --nnodes",
    "SLURM": "SLURM's environment variables are used",
    "CHECKPOINT": "--out, --resume and checkpoint.every",
    **{f"DATA.{split}.{key}": why for split in ("TRAIN", "TEST") for key, why in _DATA_REASONS.items()},
    "DATA.TEST.DROP_LAST": "an evaluation uses every sample once",
    "MODEL.SYNC_BN_CONFIG": "statistics are computed over all processes",
    "MODEL.AMP_PARAMS": "see train.precision",
    "MODEL.WEIGHTS_INIT": "init translates VISSL's names and reports the result",
    "MODEL.TRUNK.RESNETS.ZERO_INIT_RESIDUAL": "as in timm",
    "MODEL.TRUNK.VISION_TRANSFORMERS.MLP_DIM": "follows from the model",
    "MODEL.TRUNK.VISION_TRANSFORMERS.CLASSIFIER": "the class token, as in timm",
    "MODEL.TRUNK.VISION_TRANSFORMERS.QKV_BIAS": "always with biases, as in timm",
    "MODEL.FEATURE_EVAL_SETTINGS": "see evaluate.evaluators and the hook freeze",
    "MODEL.SINGLE_PASS_EVERY_CROP": "views of the same size are processed together",
    "LOSS.swav_loss.normalize_last_layer": "prototypes are always normalized",
    "LOSS.swav_loss.use_double_precision": "the precision of the assignment is fixed",
    "LOSS.simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.multicrop_simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.nce_loss_with_memory.memory_params": "follows from the data",
    "LOSS.nce_loss_with_memory.norm_embedding": "vectors are normalized",
    "LOSS.deepclusterv2_loss.memory_params": "follows from the task",
    "OPTIMIZER.larc_config": "see the optimizer lars",
    "OPTIMIZER.param_group_constructor": "see param_groups.rules",
}

_INFERRED = {
    "swav_loss": ("embedding_dim", "num_crops", "num_prototypes", "output_dir"),
    "deepclusterv2_loss": ("num_crops", "num_train_samples", "BATCHSIZE_PER_REPLICA", "DROP_LAST"),
    "dino_loss": ("output_dim", "crops_for_teacher", "normalize_last_layer"),
    "moco_loss": ("embedding_dim",),
    "barlow_twins_loss": ("embedding_dim",),
    "nce_loss_with_memory": ("num_train_samples",),
}

REASONS |= {f"LOSS.{loss}.{key}": "follows from data and task" for loss, keys in _INFERRED.items() for key in keys}

RESNETS = {
    **{(depth, 1, 64): f"resnet{depth}" for depth in (18, 34, 50, 101, 152)},
    (50, 32, 4): "resnext50_32x4d",
    **{(101, 32, width): f"resnext101_32x{width}d" for width in (4, 8, 16, 32)},
}

TRANSFORMERS = {(192, 12, 3): "tiny", (384, 12, 6): "small", (768, 12, 12): "base", (1024, 24, 16): "large"}

OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adamw", "adamw_mt": "adamw", "rmsprop": "rmsprop", "lars": "lars"}

STAGES = {f"res{number}": f"backbone.model.layer{number - 1}" for number in range(2, 6)}
"""Layers of a ResNet by VISSL's names."""
