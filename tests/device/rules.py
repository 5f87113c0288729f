"""Rules of CUDA by operation: which wait for the device, have no deterministic implementation, lack half precision.

Sources: the documentation of ``torch.use_deterministic_algorithms`` in torch 2.15, ``alertNotDeterministic`` in kernels
of torch and torchvision, and kernels that read a size or an error code on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

HALF = (torch.float16, torch.bfloat16)

# --- host waits -------------------------------------------------------------------------------------------------------

INDEXING = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}

_WAITS = {
    "aten::_linalg_check_errors": "linalg",
    "aten::_linalg_eigh": "linalg",
    "aten::_linalg_svd": "linalg",
    "aten::_unique2": "unique",
    "aten::bincount": "bincount",
    "aten::equal": "equal",
    "aten::is_nonzero": "item",
    "aten::linalg_lstsq": "linalg",
    "aten::masked_select": "boolean index",
    "aten::nonzero": "nonzero",
    "aten::unique_consecutive": "unique",
    "aten::unique_dim": "unique",
    "torchvision::nms": "nms",
}
"""Operations that read a size, a value or an error code on the host."""


def wait_of(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the kind of host wait that an operation on device tensors causes; None if it causes none."""
    name = function._schema.name
    if name in INDEXING:
        return _wait_of_indexing(args)
    if name == "aten::repeat_interleave":
        return "repeat_interleave" if kwargs.get("output_size") is None else None
    if name == "aten::multinomial":  # checks the probabilities, except for many draws with replacement
        with_replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
        return None if with_replacement and args[1] > 1 else "multinomial"
    if name == "aten::histc":
        return "histc" if len(args) < 4 or args[2] == args[3] else None  # without a range it reads the extremes
    return _WAITS.get(name)


def _wait_of_indexing(args: Sequence[Any]) -> str | None:
    indices = [index for index in args[1] if index is not None]
    if any(index.device.type == "cpu" for index in indices):
        return "index on the host"
    values = args[2] if len(args) > 2 else None
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        is_masked_fill = values is not None and values.numel() == 1 and len(indices) == 1
        return None if is_masked_fill else "boolean index"
    return "value on the host" if values is not None and values.device.type == "cpu" else None


# --- determinism ------------------------------------------------------------------------------------------------------

_NONDETERMINISTIC = {
    *(
        "aten::_adaptive_avg_pool2d_backward",
        "aten::_adaptive_avg_pool3d_backward",
        "aten::adaptive_max_pool2d_backward",
    ),
    *("aten::adaptive_max_pool3d_backward", "aten::avg_pool3d_backward", "aten::fractional_max_pool2d_backward"),
    *("aten::fractional_max_pool3d_backward", "aten::max_unpool2d", "aten::max_unpool3d"),
    *("aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward", "aten::upsample_bicubic2d_backward"),
    *("aten::upsample_trilinear3d_backward", "aten::_upsample_bilinear2d_aa_backward"),
    *("aten::_upsample_bicubic2d_aa_backward", "aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward"),
    *("aten::reflection_pad3d_backward", "aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward"),
    *("aten::_ctc_loss_backward", "aten::put_", "aten::histc", "aten::index_reduce", "aten::index_reduce_"),
    *("torchvision::_roi_pool_backward", "torchvision::_ps_roi_align_backward", "torchvision::_ps_roi_pool_backward"),
    "torchvision::_deform_conv2d_backward",
}
"""``roi_align`` is not among them: torchvision then computes it otherwise (see ``installation.py``)."""


def is_nondeterministic(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether CUDA refuses an operation with ``torch.use_deterministic_algorithms``."""
    name = function._schema.name
    if name in _NONDETERMINISTIC:
        return True
    if name == "aten::nll_loss2d_forward":
        return bool(args[3] != 0)  # reduced to one number
    if name == "aten::bincount":
        return len(args) > 1 and args[1] is not None  # with weights
    if name in ("aten::scatter_reduce", "aten::scatter_reduce_"):
        return args[4] not in ("sum", "mean")
    return name in ("aten::median", "aten::nanmedian") and function._overloadname.startswith("dim")


# --- data types -------------------------------------------------------------------------------------------------------

_WITHOUT_HALF = ("linalg_", "_linalg_", "_cdist_", "_fft_", "cholesky", "geqrf", "erfinv", "histc")
_LINALG_WITH_HALF = ("linalg_vector_norm", "linalg_cross")


@cache
def lacks(function: OpOverload, dtype: torch.dtype) -> bool:
    """Return whether CUDA has no kernel of an operation for this type in half precision."""
    namespace, _, name = function._schema.name.partition("::")
    if namespace == "torchvision":
        return dtype == torch.bfloat16
    return name.startswith(_WITHOUT_HALF) and not name.startswith(_LINALG_WITH_HALF)


# --- devices ----------------------------------------------------------------------------------------------------------

_WITH_SCALARS = {
    *("aten::copy_", "aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::_foreach_mul"),
    *("aten::_foreach_mul_", "aten::_foreach_div", "aten::_foreach_div_", "aten::_foreach_add", "aten::_foreach_add_"),
    *("aten::_foreach_addcdiv_", "aten::_foreach_addcmul_", "aten::linspace", "aten::logspace"),
}


@cache
def takes_scalars_of_the_host(function: OpOverload) -> bool:
    """Return whether operands without dimensions may be on the host, as those of elementwise operations."""
    name = function._schema.name
    return torch.Tag.pointwise in function.tags or name in _WITH_SCALARS or name in INDEXING


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return those that are not on the device."""
    return [tensor for tensor in tensors if tensor.device.type == "cpu"]
