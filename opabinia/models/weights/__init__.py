"""Pretrained weights: read files of many formats without running code, and match names and shapes."""

FORMAT_MODULES: list[str] = []
"""Modules that register the weight formats of other systems, imported when weights are first read."""

HUB_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Names of weights in a repository of the Hugging Face Hub, as timm looks for them."""
