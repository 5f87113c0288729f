"""CUDA's mixed precision for CPU tensors: dtypes of activations as on a GPU, where there is none.

``torch.autocast`` has one list of operators per device. Within :func:`cuda_autocast_on_cpu` the list of the CPU is that
of CUDA (torch's documentation, "CUDA Op-Specific Behavior"): norms, softmax, sums and powers compute in float32, while
pooling and padding keep their dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_KEY = "AutocastCPU"

# The operators in which the lists differ and that networks for images use.
_FLOAT32 = (  # noqa: SIM905 (a list would take a screen)
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa acos asin cosine_similarity dist erfinv exp expm1 "
    "frobenius_norm.dim group_norm layer_norm linalg_vector_norm log log10 log1p log2 logsumexp native_layer_norm "
    "norm.Scalar norm.ScalarOpt_dim pdist pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal renorm rms_norm "
    "rsqrt softplus tan upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d upsample_trilinear3d"
).split()
_FLOAT32_RESULT = "cumprod cumsum log_softmax.int softmax.int sum sum.dim_IntList".split()  # noqa: SIM905
_UNCHANGED = (  # noqa: SIM905
    "adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d grid_sampler_2d grid_sampler_3d max_pool3d reflection_pad1d "
    "reflection_pad2d replication_pad1d replication_pad2d replication_pad3d"
).split()


@contextmanager
def cuda_autocast_on_cpu() -> Iterator[None]:
    """Use CUDA's lists of operators in ``torch.autocast("cpu")``, for the whole process until the block ends."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    replace: Any = partial(library.impl, dispatch_key=_KEY, allow_override=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kernels are replaced on purpose
            for rule, names in ((_in_float32, _FLOAT32), (_with_float32_result, _FLOAT32_RESULT)):
                for name in names:
                    packet, _, overload = name.partition(".")
                    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                    replace(name, partial(rule, operator))
            for name in _UNCHANGED:
                replace(name, torch.library.fallthrough_kernel)
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def _in_float32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _without_autocast():
        return operator(*tree_map(_to_float32, args), **tree_map(_to_float32, kwargs))


def _with_float32_result(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute from half precision, with a float32 result: the argument ``dtype``, unless it is given."""
    with _without_autocast():
        has_dtype = any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))
        if _is_low_precision(args[0]) and not has_dtype:
            kwargs = {**kwargs, "dtype": torch.float32}
        return operator(*args, **kwargs)


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _is_low_precision(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _to_float32(value: Any) -> Any:
    return value.float() if _is_low_precision(value) else value
