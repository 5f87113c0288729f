"""Tables for VISSL: its defaults, the reasons why keys are not converted, and the equivalents of its names."""

from __future__ import annotations

from typing import Any

LR = "OPTIMIZER.param_schedulers.lr"

DECAY = "OPTIMIZER.param_schedulers.weight_decay"

_TRUNKS: dict[str, dict[str, Any]] = {
    "VISION_TRANSFORMERS": {
        **{"IMAGE_SIZE": 224, "PATCH_SIZE": 16, "NUM_LAYERS": 12, "NUM_HEADS": 12, "HIDDEN_DIM": 768},
        **{"MLP_DIM": 3072, "DROPOUT_RATE": 0.0, "ATTENTION_DROPOUT_RATE": 0.0, "DROP_PATH_RATE": 0.0},
        **{"CLASSIFIER": "token", "QKV_BIAS": False, "CHECKPOINT_MLP": False, "CHECKPOINT_BLOCK": False},
    },
    "XCIT": {
        **{"PATCH_SIZE": 16, "HIDDEN_DIM": 384, "NUM_LAYERS": 12, "NUM_HEADS": 8, "MLP_RATIO": 4.0},
        **{"DROPOUT_RATE": 0.0, "ATTENTION_DROPOUT_RATE": 0.0, "DROP_PATH_RATE": 0.05, "ETA": 1.0},
        **{"TOKENS_NORM": True, "QKV_BIAS": True},
        **{"CHECKPOINT_XCA_BLOCK": False, "CHECKPOINT_ATTN_BLOCK": False},
    },
    "SWIN_TRANSFORMER": {
        **{"IMAGE_SIZE": 224, "PATCH_SIZE": 4, "EMBED_DIM": 96, "DEPTHS": [2, 2, 6, 2]},
        **{"NUM_HEADS": [3, 6, 12, 24], "WINDOW_SIZE": 7, "MLP_RATIO": 4.0, "QKV_BIAS": True},
        **{"DROPOUT_RATE": 0.0, "ATTENTION_DROPOUT_RATE": 0.0, "DROP_PATH_RATE": 0.1},
    },
    "BEIT": {
        **{"IMAGE_SIZE": 224, "PATCH_SIZE": 16, "NUM_LAYERS": 12, "NUM_HEADS": 12, "HIDDEN_DIM": 768},
        **{"MLP_RATIO": 4.0, "DROPOUT_RATE": 0.0, "ATTENTION_DROPOUT_RATE": 0.0, "DROP_PATH_RATE": 0.0},
        **{"QKV_BIAS": False, "USE_ABS_POS_EMB": True, "USE_REL_POS_BIAS": False, "INIT_VALUES": False},
        **{"USE_SHARED_REL_POS_BIAS": False, "USE_MEAN_POOLING": True},
    },
    "CONVNEXT": {"DEPTH": [3, 3, 27, 3], "DIMS": [96, 192, 384, 768], "DROP_PATH_RATE": 0.0},
    "CONVIT": {"N_GPSA_LAYERS": 10, "CLASS_TOKEN_IN_LOCAL_LAYERS": False, "LOCALITY_STRENGTH": 1.0},
    "MOBILE_NET": {"NAME": "mobilenetv3_large_100"},
    "REGNET": {
        **{"bottleneck_multiplier": 1.0, "stem_width": 32, "block_type": "res_bottleneck_block"},
        **{"use_se": True, "se_ratio": 0.25},
    },
}
"""Defaults of the trunks, by section of MODEL.TRUNK."""

DEFAULTS: dict[str, Any] = {
    "engine_name": "train",
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
            "COLLATE_FUNCTION": "default_collate",
            "COLLATE_FUNCTION_PARAMS": {},
        }.items()
    },
    "MODEL.TRUNK.NAME": "resnet",
    "MODEL.TRUNK.RESNETS.DEPTH": 50,
    "MODEL.TRUNK.RESNETS.GROUPS": 1,
    "MODEL.TRUNK.RESNETS.WIDTH_PER_GROUP": 64,
    "MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER": 1,
    "MODEL.TRUNK.RESNETS.NORM": "BatchNorm",
    "MODEL.TRUNK.RESNETS.LAYER4_STRIDE": 2,
    "MODEL.TRUNK.RESNETS.STANDARDIZE_CONVOLUTIONS": False,
    **{f"MODEL.TRUNK.{family}.{key}": value for family, values in _TRUNKS.items() for key, value in values.items()},
    "MODEL.INPUT_TYPE": "rgb",
    "MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP": False,
    "MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING": False,
    "MODEL.HEAD.PARAMS": [],
    "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP": [],
    "MODEL.FEATURE_EVAL_SETTINGS.EVAL_MODE_ON": False,
    "MODEL.FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY": False,
    "MODEL.FEATURE_EVAL_SETTINGS.EVAL_TRUNK_AND_HEAD": False,
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
    **{
        f"LOSS.swav_momentum_loss.{key}": value
        for key, value in {
            **{"momentum": 0.99, "momentum_eval_mode_iter_start": 0, "temperature": 0.1, "epsilon": 0.05},
            **{"num_iters": 3, "crops_for_assign": [0, 1], "queue.queue_length": 0, "queue.start_iter": 0},
        }.items()
    },
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
    "LOSS.ibot_loss.teacher_momentum": 0.996,
    "LOSS.ibot_loss.student_temp": 0.1,
    "LOSS.ibot_loss.warmup_teacher_temp": 0.04,
    "LOSS.ibot_loss.teacher_temp": 0.04,
    "LOSS.ibot_loss.warmup_teacher_patch_temp": 0.04,
    "LOSS.ibot_loss.teacher_patch_temp": 0.07,
    "LOSS.ibot_loss.warmup_teacher_temp_epochs": 30,
    "LOSS.ibot_loss.center_momentum": 0.9,
    "LOSS.ibot_loss.center_momentum2": 0.9,
    "LOSS.ibot_loss.lambda1": 1.0,
    "LOSS.ibot_loss.lambda2": 1.0,
    "LOSS.ibot_loss.mim_start_epoch": 0,
    "LOSS.barlow_twins_loss.lambda_": 0.0051,
    "LOSS.barlow_twins_loss.scale_loss": 0.024,
    "LOSS.nce_loss_with_memory.loss_type": "nce",
    "LOSS.nce_loss_with_memory.temperature": 0.07,
    "LOSS.nce_loss_with_memory.negative_sampling_params.num_negatives": 16000,
    "LOSS.nce_loss_with_memory.memory_params.momentum": 0.5,
    "LOSS.nce_loss_with_memory.memory_params.embedding_dim": 128,
    "LOSS.nce_loss_with_memory.loss_weights": [1.0],
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
    "OPTIMIZER.param_group_constructor": "default",
    "OPTIMIZER.layer_wise_lr_decay.decay": 0.9,
    "NEAREST_NEIGHBOR.SIGMA": 0.1,
    "NEAREST_NEIGHBOR.TOPK": 200,
    "NEAREST_NEIGHBOR.L2_NORM_FEATS": False,
    "SVM.costs.costs_list": [0.1, 0.01],
    "SVM.costs.base": -1.0,
    "SVM.costs.power_range": [4, 20],
    "SVM.cross_val_folds": 3,
    "SVM.low_shot.k_values": [1, 2, 4, 8, 16, 32, 64, 96],
    "LOW_SHOT_BENCHMARK.LOGISTIC_REGRESSION.LAMBDA": 0.025,
    "IMG_RETRIEVAL.TRAIN_DATASET_NAME": "Oxford",
    "IMG_RETRIEVAL.EVAL_DATASET_NAME": "Paris",
    "IMG_RETRIEVAL.RESIZE_IMG": 1024,
    "IMG_RETRIEVAL.SPATIAL_LEVELS": 3,
    "IMG_RETRIEVAL.N_PCA": 512,
    "IMG_RETRIEVAL.FEATS_PROCESSING_TYPE": "",
    "IMG_RETRIEVAL.GEM_POOL_POWER": 4.0,
    "CLUSTERFIT.NUM_CLUSTERS": 16000,
    "CLUSTERFIT.FEATURES.LAYER_NAME": "",
    "DISTILLATION.TEACHER_MODEL.TRUNK.NAME": "resnet",
    "DISTILLATION.TEACHER_MODEL.WEIGHTS_INIT.PARAMS_FILE": "please specify teacher model weights",
    "CHECKPOINT.CHECKPOINT_FREQUENCY": 1,
    "DISTRIBUTED.NUM_NODES": 1,
    "DISTRIBUTED.NUM_PROC_PER_NODE": 8,
}
"""VISSL's defaults of the keys that are converted."""

_DATA_REASONS = {
    "LABEL_TYPE": "follows from the task",
    "LABEL_SOURCES": "the source contains the labels",
    "LABEL_PATHS": "the source contains the labels",
    "MMAP_MODE": "no effect: lists are read once",
    "COPY_TO_LOCAL_DISK": "data is not copied",
    "COPY_DESTINATION_DIR": "data is not copied",
    "ENABLE_QUEUE_DATASET": "data.on_error: skip",
    "DEFAULT_GRAY_IMG_SIZE": "data.on_error: skip drops broken images",
    "BASE_DATASET": "internal to VISSL",
    "INPUT_KEY_NAMES": "internal to VISSL",
    "TARGET_KEY_NAMES": "internal to VISSL",
    "USE_DEBUGGING_SAMPLER": "the order of the samples is always reproducible",
    "USE_STATEFUL_DISTRIBUTED_SAMPLER": "every run resumes within an epoch",
}
REASONS = {
    "REPRODUCIBILITY": "see train.deterministic",
    "MONITORING": "see opabinia config list hook",
    "PROFILING": "see the hook profiler",
    "DATA.PIN_MEMORY": "memory is pinned for GPUs",
    "DATA.ENABLE_ASYNC_GPU_COPY": "batches are copied asynchronously",
    "DATA.DDP_BUCKET_CAP_MB": "see train.parallel: {name: ddp, bucket_cap_mb: 25}",
    "MODEL.BASE_MODEL_NAME": "internal to VISSL",
    "MODEL.MULTI_INPUT_HEAD_MAPPING": "the task applies its heads to the views",
    "MODEL.SHARDED_DDP_SETUP": "see train.parallel: {name: fsdp}",
    "MODEL.TRUNK.VISION_TRANSFORMERS.MASKED_IMAGE_MODELING": "follows from the task",
    "MODEL.TRUNK.XCIT.IMAGE_SIZE": "XCiT takes images of any size",
    "LOSS.CrossEntropyLoss": "as in the loss cross_entropy",
    "LOSS.cross_entropy_multiple_output_single_target.reduction": "losses are averaged",
    "LOSS.cross_entropy_multiple_output_single_target.ignore_index": "every image has a label",
    "LOSS.bce_logits_multiple_output_single_target.reduction": "losses are averaged over images",
    "LOSS.bce_logits_multiple_output_single_target.world_size": "follows from the number of processes",
    "OPTIMIZER.use_zero": "see train.parallel: {name: fsdp}",
    "OPTIMIZER.construct_single_param_group_only": "see param_groups.rules",
    "DISTILLATION.eager_teacher_init": "internal to VISSL",
    "DISTILLATION.TEACHER_MODEL.BASE_MODEL_NAME": "internal to VISSL",
    "DISTILLATION.TEACHER_MODEL.FSDP_CONFIG": "see train.parallel",
    "DISTILLATION.TEACHER_MODEL.ACTIVATION_CHECKPOINTING": "the teacher has no backward pass",
    "RANKING": "see opabinia predict --gallery",
    "VERSION": "internal to VISSL",
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
    "MODEL.TRUNK.CONVIT": "as in timm",
    "MODEL.FSDP_CONFIG": "see train.parallel: {name: fsdp}",
    "MODEL.ACTIVATION_CHECKPOINTING": "every block is recomputed; see train.activation_checkpointing",
    "MODEL.FEATURE_EVAL_SETTINGS": "see evaluate.evaluators and the hook freeze",
    "MODEL.SINGLE_PASS_EVERY_CROP": "views of the same size are processed together",
    "LOSS.swav_loss.normalize_last_layer": "prototypes are always normalized",
    "LOSS.swav_loss.use_double_precision": "the precision of the assignment is fixed",
    "LOSS.swav_momentum_loss.normalize_last_layer": "prototypes are always normalized",
    "LOSS.swav_momentum_loss.use_double_precision": "the precision of the assignment is fixed",
    "LOSS.simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.multicrop_simclr_info_nce_loss.buffer_params": "follows from the task and the batch",
    "LOSS.nce_loss_with_memory.memory_params": "follows from the data",
    "LOSS.nce_loss_with_memory.norm_embedding": "vectors are normalized",
    "LOSS.nce_loss_with_memory.update_mem_with_emb_index": "the memory keeps the embeddings of images",
    "LOSS.deepclusterv2_loss.memory_params": "follows from the task",
    "OPTIMIZER.larc_config": "see the optimizer lars",
    "NEAREST_NEIGHBOR": "follows from the device and the data",
    "SVM": "as in the evaluator linear_svm",
    "SVM_FEATURES_PATH": "features are computed when they are evaluated",
    "LOW_SHOT_BENCHMARK.FEATURES": "features are computed when they are evaluated",
    "CLUSTERFIT": "see opabinia extract and the evaluator clustering",
    "EXTRACT_FEATURES": "opabinia extract --out",
    "DISTILLATION.TEACHER_MODEL.HEAD": "the teacher's classifier is linear",
    "DISTILLATION.TEACHER_MODEL.WEIGHTS_INIT": "names are matched when the file is loaded",
    "DISTILLATION.TEACHER_MODEL.FEATURE_EVAL_SETTINGS": "the teacher is frozen",
}

_INFERRED = {
    "swav_loss": ("embedding_dim", "num_crops", "num_prototypes", "output_dir"),
    "swav_momentum_loss": ("embedding_dim", "num_crops", "num_prototypes"),
    "deepclusterv2_loss": ("num_crops", "num_train_samples", "BATCHSIZE_PER_REPLICA", "DROP_LAST"),
    "dino_loss": ("output_dim", "crops_for_teacher", "normalize_last_layer"),
    "moco_loss": ("embedding_dim",),
    "barlow_twins_loss": ("embedding_dim",),
    "nce_loss_with_memory": ("num_train_samples",),
    "ibot_loss": ("num_global_crops", "num_local_crops", "out_dim", "patch_out_dim", "num_epochs"),
}

_ASSIGNMENTS = "of assignments to prototypes; features before the heads are compared"

REASONS |= {f"LOSS.{name}_distillation_loss": _ASSIGNMENTS for name in ("dino", "ibot", "msn", "swav")}

REASONS |= {f"LOSS.{loss}.{key}": "follows from data and task" for loss, keys in _INFERRED.items() for key in keys}

RESNET_DEPTHS = (18, 34, 50, 101, 152, 200)

RESNEXTS = {
    (50, 32, 4): "resnext50_32x4d",
    **{(101, 32, width): f"resnext101_32x{width}d" for width in (4, 8, 16, 32)},
}
"""timm's names by depth, groups and width of a group."""

TRANSFORMERS = {
    (192, 12, 3): ("tiny", (16,)),
    (384, 12, 6): ("small", (8, 16, 32)),
    (768, 12, 12): ("base", (8, 16, 32)),
    (1024, 24, 16): ("large", (14, 16, 32)),
}
"""timm's names of vision transformers and their patch sizes, by width, depth and heads."""

REGNET_SIZES = {
    (20, 232, 115.89, 2.53, 232): "regnety_320",
    (20, 352, 147.48, 2.4, 328): "regnety_640",
    (27, 456, 160.83, 2.52, 264): "regnety_1280",
    (27, 640, 230.83, 2.53, 373): "regnety_2560",
}
"""timm's names of the RegNetY that VISSL gives by depth, w_0, w_a, w_m and width of a group (SEER)."""

ANYNETS = {"regnety_160": [[2, 4, 11, 1], [224, 448, 1232, 3024], [112, 112, 112, 112]]}
"""Depths, widths and group widths of the stages of ``anynet`` in VISSL's configs, by timm's names."""

REFUSED_TOOLS = {
    "GEO_LOCALIZATION": "classes are not mapped to places on earth",
    "extract_cluster": "images are not assigned to prototypes; opabinia extract writes their features",
}
"""Sections and engines of tools that are refused, with the reason."""

REFUSED_LOSSES = {
    "msn_loss": "VISSL's is a stub that compares the sums of the outputs",
    "clusterfit_loss": "see opabinia extract",
}
"""Losses that are refused, with the reason."""

MULTI_LABEL = ("voc2007", "voc2012", "coco2014", "openimages")
"""Beginnings of the names of datasets whose images have several labels."""

EFFICIENT_NETS = tuple(f"b{number}" for number in range(9))

_NO_ALEXNET = "timm has no AlexNet"

REFUSED_TRUNKS = {
    "alexnet_bvlc": _NO_ALEXNET,
    "alexnet_colorization": _NO_ALEXNET,
    "alexnet_deepcluster": _NO_ALEXNET,
    "alexnet_jigsaw": _NO_ALEXNET,
    "alexnet_rotnet": _NO_ALEXNET,
    "classy_vit": "its size is defined by ClassyVision; use vision_transformer",
    "resnet_sk": "timm's selective-kernel ResNets have other stems and shortcuts than SimCLR v2's",
}
"""Trunks that are refused, with the reason."""

OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adamw", "adamw_mt": "adamw", "rmsprop": "rmsprop", "lars": "lars"}

STAGES = {f"res{number}": f"backbone.model.layer{number - 1}" for number in range(2, 6)}
"""Layers of a ResNet by VISSL's names."""
